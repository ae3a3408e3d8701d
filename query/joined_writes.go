package query

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

const (
	// headBuffer is the size of net/http's buffer of a connection, in bytes. A longer response takes at
	// least two writes: the full buffer, and the rest.
	headBuffer = 4 << 10
	// minJoined is the size in bytes of the smallest body whose writes are joined. A smaller response
	// fits in net/http's buffer with its header.
	minJoined = 3 << 10
)

// joinedListener accepts connections that can join the writes of a response. It does not change
// connections with TLS, because net/http treats *tls.Conn differently.
type joinedListener struct{ net.Listener }

func (l joinedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		return &joinedConn{TCPConn: tcp}, nil
	}
	return conn, err
}

// joinedConn is a TCP connection that can send the header and the body of a response with one system
// call, which also wakes the client only once. On loopback this saves a third of the time of a read of
// 9 kB. Only the goroutine that serves the connection writes.
type joinedConn struct {
	*net.TCPConn
	joining bool
	held    *[headBuffer]byte // the start of the response, which is not sent yet
	size    int               // number of valid bytes in held
	parts   [2][]byte
	buffers net.Buffers
}

// heldBuffers are the buffers of joinedConn.held. A connection has one only during a write.
var heldBuffers = sync.Pool{New: func() any { return new([headBuffer]byte) }}

type connKey struct{}

// withConn returns the context of the requests of a connection.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// joinWrites makes the connection of the request hold the start of the response until sendJoined. It
// returns nil if the connection can't do that, or if the body is so small that it is not needed.
func joinWrites(r *http.Request, bodySize int) *joinedConn {
	if bodySize < minJoined {
		return nil
	}
	c, ok := r.Context().Value(connKey{}).(*joinedConn)
	if ok {
		c.joining = true
	}
	return c
}

// sendJoined sends what net/http and the connection have buffered of the response.
func (c *joinedConn) sendJoined(w http.ResponseWriter) error {
	err := http.NewResponseController(w).Flush()
	c.joining = false
	if c.size > 0 {
		_, failed := c.writeAfterHeld(nil)
		err = errors.Join(err, failed)
	}
	return err
}

// Write implements net.Conn. While writes are joined, it holds the first headBuffer bytes, and sends
// them together with the write that follows them.
func (c *joinedConn) Write(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case c.joining && c.size+len(p) <= headBuffer:
		if c.held == nil {
			c.held = heldBuffers.Get().(*[headBuffer]byte) //nolint:forcetypeassert // the pool has only this type
		}
		c.size += copy(c.held[c.size:], p)
		return len(p), nil
	case c.size > 0:
		return c.writeAfterHeld(p)
	}
	return c.TCPConn.Write(p)
}

// writeAfterHeld sends the held bytes and p. It returns how many bytes of p were sent.
func (c *joinedConn) writeAfterHeld(p []byte) (int, error) {
	held := c.size
	c.parts = [2][]byte{c.held[:held], p}
	c.buffers = c.parts[:]
	n, err := c.buffers.WriteTo(c.TCPConn)
	heldBuffers.Put(c.held)
	c.held, c.size, c.parts = nil, 0, [2][]byte{}
	return max(0, int(n)-held), err
}
