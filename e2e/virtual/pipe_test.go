package virtual

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// errCut is the error of a connection that a fault has closed.
var errCut = errors.New("connection reset by a fault")

// stream is one direction of a connection in memory. Unlike net.Pipe it buffers: a pipeline of Redis
// commands blocks net.Pipe, because both ends write at the same time.
type stream struct {
	mu       sync.Mutex
	changed  *sync.Cond
	data     []byte
	end      error // error of a read after all data; nil while the stream is open
	stalled  bool  // the data does not arrive for now
	deadline time.Time
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.changed.Broadcast()
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch late := !s.deadline.IsZero() && !time.Now().Before(s.deadline); {
		case late:
			return 0, os.ErrDeadlineExceeded
		case len(s.data) > 0 && !s.stalled:
			n := copy(p, s.data)
			if s.data = s.data[n:]; len(s.data) == 0 {
				s.data = nil
			}
			return n, nil
		case s.end != nil && (len(s.data) == 0 || !errors.Is(s.end, io.EOF)):
			return 0, s.end
		}
		var wake *time.Timer
		if !s.deadline.IsZero() {
			wake = time.AfterFunc(time.Until(s.deadline), s.changed.Broadcast)
		}
		s.changed.Wait()
		if wake != nil {
			wake.Stop()
		}
	}
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return 0, net.ErrClosed
	}
	s.data = append(s.data, p...)
	s.changed.Broadcast()
	return len(p), nil
}

func (s *stream) close(end error) {
	s.update(func() {
		if s.end == nil || !errors.Is(end, io.EOF) {
			s.end = end
		}
	})
}

// conn is one end of a connection in memory.
type conn struct {
	in, out       *stream
	local, remote net.Addr
	onClose       func()
}

// newPipe returns the two ends of a connection.
func newPipe(client, server net.Addr) (*conn, *conn) {
	up, down := newStream(), newStream()
	return &conn{in: down, out: up, local: client, remote: server, onClose: func() {}},
		&conn{in: up, out: down, local: server, remote: client, onClose: func() {}}
}

// Read reads data that has arrived.
func (c *conn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write never blocks.
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close closes the connection in both directions. The peer can still read the data that was written
// before.
func (c *conn) Close() error {
	c.out.close(io.EOF)
	c.in.close(net.ErrClosed)
	c.onClose()
	return nil
}

// cut closes both ends at once. Data that has not been read is lost.
func (c *conn) cut() {
	c.in.close(errCut)
	c.out.close(errCut)
	c.onClose()
}

// stall stops or continues the arrival of data at both ends.
func (c *conn) stall(stalled bool) {
	for _, s := range []*stream{c.in, c.out} {
		s.update(func() { s.stalled = stalled })
	}
}

func (c *conn) LocalAddr() net.Addr { return c.local }

func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the deadline of reads. Writes need no deadline, because they never block.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline sets the deadline of current and later reads.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.update(func() { c.in.deadline = t })
	return nil
}

// SetWriteDeadline has no effect, because writes never block.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
