package query

import (
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/labstack/echo/v4"
)

const (
	// writeChunk is how many bytes are written under one deadline, and writeTimeout
	// is that deadline: a client that does not accept a chunk within it is
	// disconnected, one that reads slowly (6.4 KiB/s) is not.
	writeChunk   = 64 << 10
	writeTimeout = 10 * time.Second
	// sendBuffer bounds what the kernel buffers of a response, in bytes. Beyond it a
	// client's progress would be seen late: the kernel asks for more only when a
	// third of its buffer is free. Its memory counts towards that of a container.
	sendBuffer = 256 << 10
)

// write writes a part of a response in chunks, each under a deadline of its own. An
// error means that the client has left or has been disconnected.
func (s *Server) write(c echo.Context, part []byte) error {
	w := c.Response()
	deadline := http.NewResponseController(w)
	for len(part) > 0 {
		n := min(len(part), writeChunk)
		_ = deadline.SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's writer has none
		if _, err := w.Write(part[:n]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.metrics.timedOut.Inc()
			}
			s.log.Debug("response not read by its client", "err", err)
			return err
		}
		part = part[n:]
	}
	return nil
}

// limitSendBuffer bounds the kernel's send buffer of a connection, if it has one.
func limitSendBuffer(conn net.Conn) {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer)
	}
}
