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

// Proxy forwards TCP connections over loopback to a service. It can delay, stall, refuse, cut and
// corrupt connections. Unlike a network namespace, it needs no privileges and affects only the
// processes that connect through it. Other test runs can therefore use the same services.
type Proxy struct {
	listener     net.Listener
	readPiece    func(io.Reader) ([]byte, error) // function that reads the next piece of bytes from a connection
	onReply      func([]byte)                    // may change a piece that the service sends; nil: no piece is changed
	delay        atomic.Int64                    // delay of all bytes in each direction, in nanoseconds
	corruptEvery atomic.Int64                    // one bit of every n-th piece is flipped; 0: none
	forwarded    atomic.Int64
	refusing     atomic.Bool
	mu           sync.Mutex
	service      string        // address of the service
	stalled      chan struct{} // closed by Stall(false); nil if the proxy is not stalled
	open         map[net.Conn]bool
	closed       bool
}

// NewProxy starts a proxy to the address of a service. onReply is called with each piece of bytes
// that the service sends, and may be nil. The caller closes the proxy.
func NewProxy(ctx context.Context, service string, onReply func(piece []byte)) (*Proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, service: service, readPiece: readAvailable, onReply: onReply}
	go p.serve()
	return p, nil
}

// Address returns the address on which the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Redirect makes new connections go to another address.
func (p *Proxy) Redirect(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.service = to
}

// SetDelay delays all bytes in each direction.
func (p *Proxy) SetDelay(by time.Duration) { p.delay.Store(int64(by)) }

// Stall stalls the proxy if on is true: connections stay open and new connections are accepted, but
// no bytes are forwarded. If on is false, the proxy forwards the buffered bytes and all later bytes,
// like a network that recovers.
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

// Refuse makes the proxy close each new connection at once. Open connections stay open.
func (p *Proxy) Refuse(on bool) { p.refusing.Store(on) }

// Corrupt makes the proxy flip one bit in every n-th piece of bytes; with 0 it flips no bits.
func (p *Proxy) Corrupt(n int) { p.corruptEvery.Store(int64(n)) }

// Cut resets all open TCP connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // with a linger time of 0, Close sends a reset instead of a FIN
		}
		_ = conn.Close()
	}
	clear(p.open)
}

// Close stops the proxy and resets its connections.
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

// delayedPiece is a piece of bytes and the time at which it is forwarded.
type delayedPiece struct {
	due   time.Time
	bytes []byte
}

// pump forwards the pieces of one direction. Up to 1000 pieces are delayed at the same time,
// so that the delay adds latency without limiting throughput.
func (p *Proxy) pump(from io.ReadCloser, to io.WriteCloser, change func([]byte)) {
	pieces := make(chan delayedPiece, 1000)
	go func() {
		defer close(pieces)
		for {
			text, err := p.readPiece(from)
			if err != nil {
				return
			}
			if change != nil {
				change(text)
			}
			p.corrupt(text)
			pieces <- delayedPiece{time.Now().Add(time.Duration(p.delay.Load())), text}
		}
	}()
	broken := false
	for f := range pieces { // this loop continues after a failed write, so that the goroutine that reads never blocks
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
	p.waitWhileStalled() // a stalled proxy does not forward the end of a connection
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
	if n := p.corruptEvery.Load(); n > 0 && p.forwarded.Add(1)%n == 0 {
		text[len(text)/2] ^= 1
	}
}

// readAvailable reads the bytes that are available, with a single call of Read.
func readAvailable(from io.Reader) ([]byte, error) {
	text := make([]byte, 32<<10)
	n, err := from.Read(text)
	if n > 0 {
		return text[:n], nil
	}
	if err == nil {
		err = errors.New("read returned no bytes")
	}
	return nil, err
}
