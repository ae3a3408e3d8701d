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
	// writeChunk is how many bytes are written with one deadline of writeTimeout. A client that
	// does not read a chunk in that time is disconnected, so the slowest accepted rate is 6.4
	// KiB/s.
	writeChunk   = 64 << 10
	writeTimeout = 10 * time.Second
	// sendBuffer is the kernel's send buffer per connection, in bytes. The kernel accepts more data
	// only when a third of the buffer is free. A slow client may not free a third of a larger
	// buffer within writeTimeout, and would be disconnected although it reads. The memory counts
	// toward the container's limit.
	sendBuffer = 256 << 10
)

// write writes part of a response in chunks. An error means that the client disconnected, or was
// disconnected because it read too slowly.
func (s *Server) write(c echo.Context, part []byte) error {
	w := c.Response()
	deadline := http.NewResponseController(w)
	for len(part) > 0 {
		n := min(len(part), writeChunk)
		_ = deadline.SetWriteDeadline(time.Now().Add(writeTimeout)) // the response writers of tests have no deadline
		if _, err := w.Write(part[:n]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.metrics.timedOut.Inc()
			}
			s.log.Debug("response not read by the client", "err", err)
			return err
		}
		part = part[n:]
	}
	return nil
}

// limitSendBuffer sets the kernel's send buffer of a TCP connection.
func limitSendBuffer(conn net.Conn) {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer)
	}
}
