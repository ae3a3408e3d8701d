package servicetest

import (
	"net"
	"testing"
)

// Filter decides about each piece of bytes that one side of a connection sends. If it returns false,
// the piece is not forwarded, and the connection is closed. A nil Filter lets every piece pass.
type Filter func(piece []byte) (passes bool)

// Proxy starts a TCP proxy in front of the address to, and returns the address of the proxy. The proxy
// stops at the end of the test. For each new connection, the function filters returns two filters: one
// for requests and one for replies. A nil function lets every piece pass.
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

// pump forwards pieces of bytes from one side to the other until the connection ends or the filter
// rejects a piece. Then it closes both sides.
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
