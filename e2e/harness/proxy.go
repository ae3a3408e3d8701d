package harness

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy forwards connections over loopback to a service, and can delay, stall, refuse, cut
// and corrupt them while they are in use. Unlike a network namespace it needs no rights and
// affects only the processes that connect through it: other runs share the services.
type Proxy struct {
	listener net.Listener
	// piece reads one piece from a connection; answer may change a piece of an answer, or is nil.
	readPiece    func(io.Reader) ([]byte, error)
	onReply      func([]byte)
	delay        atomic.Int64 // nanoseconds in each direction
	corruptEvery atomic.Int64 // one of so many pieces is corrupted; 0: none
	forwarded    atomic.Int64
	refusing     atomic.Bool
	mu           sync.Mutex
	service      string        // address
	stalled      chan struct{} // closed when Stall ends; nil if it is not stalled
	open         map[net.Conn]bool
	closed       bool
}

// NewProxy returns a proxy to the address of a service. answer is called with each piece of
// the service's answers, and may be nil.
func NewProxy(ctx context.Context, service string, answer func(piece []byte)) (*Proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, service: service, readPiece: readAvailable, onReply: answer}
	go p.serve()
	return p, nil
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Redirect makes new connections go to another address.
func (p *Proxy) Redirect(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.service = to
}

// SetDelay delays each direction.
func (p *Proxy) SetDelay(by time.Duration) { p.delay.Store(int64(by)) }

// Stall accepts connections and forwards nothing. Stall(false) forwards what was sent
// meanwhile, as a network does that comes back.
func (p *Proxy) Stall(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on && p.stalled == nil && !p.closed {
		p.stalled = make(chan struct{})
	} else if !on && p.stalled != nil {
		close(p.stalled)
		p.stalled = nil
	}
}

// Refuse closes each new connection at once. Open connections stay.
func (p *Proxy) Refuse(on bool) { p.refusing.Store(on) }

// Corrupt changes a bit of one piece in so many; 0 ends that.
func (p *Proxy) Corrupt(one int) { p.corruptEvery.Store(int64(one)) }

// Cut resets all open connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an end in good order
		}
		_ = conn.Close()
	}
	clear(p.open)
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Stall(false)
	p.Cut()
}

func (p *Proxy) serve() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.refusing.Load() {
			_ = from.Close()
			continue
		}
		go p.forward(from)
	}
}

// forward forwards a connection in both directions.
func (p *Proxy) forward(from net.Conn) {
	defer func() { _ = from.Close() }()
	p.mu.Lock()
	service := p.service
	p.mu.Unlock()
	to, err := (&net.Dialer{Timeout: Timeout}).DialContext(context.Background(), "tcp", service)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	if !p.register(from, to) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(from, to, nil) })
	both.Go(func() { p.pump(to, from, p.onReply) })
	both.Wait()
	p.mu.Lock()
	delete(p.open, from)
	delete(p.open, to)
	p.mu.Unlock()
}

func (p *Proxy) register(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = map[net.Conn]bool{}
	}
	for _, conn := range conns {
		p.open[conn] = true
	}
	return !p.closed
}

// delayedPiece is a piece and when it is due at the other end.
type delayedPiece struct {
	due   time.Time
	bytes []byte
}

// pump forwards pieces of one direction. Many are in flight at once, as on a long wire.
func (p *Proxy) pump(from io.ReadCloser, to io.WriteCloser, change func([]byte)) {
	wire := make(chan delayedPiece, 1000)
	go func() {
		defer close(wire)
		for {
			text, err := p.readPiece(from)
			if err != nil {
				return
			}
			if change != nil {
				change(text)
			}
			p.corrupt(text)
			wire <- delayedPiece{time.Now().Add(time.Duration(p.delay.Load())), text}
		}
	}()
	broken := false
	for f := range wire { // to its end, so that the reader never waits for a place
		if broken {
			continue
		}
		if wait := time.Until(f.due); wait > 0 {
			<-time.After(wait)
		}
		p.waitWhileStalled()
		if _, err := to.Write(f.bytes); err != nil {
			broken = true
			_ = from.Close()
		}
	}
	p.waitWhileStalled() // an end is not heard of either
	_ = from.Close()
	_ = to.Close()
}

func (p *Proxy) waitWhileStalled() {
	for {
		p.mu.Lock()
		stalled := p.stalled
		p.mu.Unlock()
		if stalled == nil {
			return
		}
		<-stalled
	}
}

func (p *Proxy) corrupt(text []byte) {
	if one := p.corruptEvery.Load(); one > 0 && p.forwarded.Add(1)%one == 0 {
		text[len(text)/2] ^= 1
	}
}

// readAvailable returns the bytes that one read returns.
func readAvailable(from io.Reader) ([]byte, error) {
	text := make([]byte, 32<<10)
	n, err := from.Read(text)
	if n > 0 {
		return text[:n], nil
	}
	if err == nil {
		err = errors.New("nothing was read")
	}
	return nil, err
}
