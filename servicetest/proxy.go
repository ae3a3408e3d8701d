package servicetest

import (
	"net"
	"testing"
)

// Filter decides about each piece of bytes of one direction of a connection before it is forwarded. If it
// returns false, the piece is not forwarded, and the connection is closed. nil: every piece passes.
type Filter func(piece []byte) (passes bool)

// Proxy starts a TCP proxy to an address and returns the address of the proxy, which ends with the test.
// filters returns the filters of the requests and of the replies of a new connection. nil: every piece
// passes.
func Proxy(t testing.TB, to string, filters func() (request, reply Filter)) (address string) {
	t.Helper()
	ctx := t.Context()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			var request, reply Filter
			if filters != nil {
				request, reply = filters()
			}
			go pump(server, client, request)
			go pump(client, server, reply)
		}
	}()
	return l.Addr().String()
}

// pump forwards pieces until the connection ends or a piece does not pass. Then it closes both sides.
func pump(to, from net.Conn, filter Filter) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && filter != nil && !filter(buffer[:n]) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
