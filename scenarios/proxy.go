package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy is a way over loopback to a service, which can be made bad while it is in use.
// It needs no rights, unlike a network namespace, and hurts only who is led over it:
// the services are everybody's. There may be many, one for each who shall be hurt alone.
type proxy struct {
	listener net.Listener
	// piece reads what is carried at once, and answer changes an answer.
	piece   func(io.Reader) ([]byte, error)
	answer  func([]byte)
	delay   atomic.Int64 // of each direction
	spoils  atomic.Int64 // of so many pieces one; 0 for none
	carried atomic.Int64
	refuses atomic.Bool
	mu      sync.Mutex
	service string        // where it leads
	stalled chan struct{} // closed when it goes on; nil if it does
	open    map[net.Conn]bool
	closed  bool
}

// newProxy leads to a service whose protocol it need not know.
func newProxy(ctx context.Context, service string) (*proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, service: service, piece: readSome, answer: func([]byte) {}}
	go p.serve()
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// lead has connections that are made from now on lead elsewhere.
func (p *proxy) lead(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.service = to
}

// slow has each direction take so much longer.
func (p *proxy) slow(by time.Duration) { p.delay.Store(int64(by)) }

// stall has connections be made and nothing be carried. What was sent meanwhile is
// carried when it ends, as by a network that comes back.
func (p *proxy) stall(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on && p.stalled == nil && !p.closed {
		p.stalled = make(chan struct{})
	} else if !on && p.stalled != nil {
		close(p.stalled)
		p.stalled = nil
	}
}

// refuse has each new connection be closed at once; those that are open stay.
func (p *proxy) refuse(on bool) { p.refuses.Store(on) }

// corrupt changes a bit of one of so many pieces; 0 ends that.
func (p *proxy) corrupt(one int) { p.spoils.Store(int64(one)) }

// cut ends all connections, in the midst of whatever they carry.
func (p *proxy) cut() {
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

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stall(false)
	p.cut()
}

func (p *proxy) serve() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.refuses.Load() {
			_ = from.Close()
			continue
		}
		go p.carry(from)
	}
}

// carry carries all of a connection.
func (p *proxy) carry(from net.Conn) {
	defer func() { _ = from.Close() }()
	p.mu.Lock()
	service := p.service
	p.mu.Unlock()
	to, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "tcp", service)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	if !p.opened(from, to) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(from, to, func([]byte) {}) })
	both.Go(func() { p.pump(to, from, p.answer) })
	both.Wait()
	p.mu.Lock()
	delete(p.open, from)
	delete(p.open, to)
	p.mu.Unlock()
}

func (p *proxy) opened(conns ...net.Conn) bool {
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

// parcel is a piece, and when it has come all the way.
type parcel struct {
	due  time.Time
	text []byte
}

// pump carries pieces, as a long wire does: many are under way at once.
func (p *proxy) pump(from io.ReadCloser, to io.WriteCloser, change func([]byte)) {
	wire := make(chan parcel, 1000)
	go func() {
		defer close(wire)
		for {
			text, err := p.piece(from)
			if err != nil {
				return
			}
			change(text)
			p.spoil(text)
			wire <- parcel{time.Now().Add(time.Duration(p.delay.Load())), text}
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
		p.untilFlowing()
		if _, err := to.Write(f.text); err != nil {
			broken = true
			_ = from.Close()
		}
	}
	p.untilFlowing() // an end is not heard of either
	_ = from.Close()
	_ = to.Close()
}

func (p *proxy) untilFlowing() {
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

func (p *proxy) spoil(text []byte) {
	if one := p.spoils.Load(); one > 0 && p.carried.Add(1)%one == 0 {
		text[len(text)/2] ^= 1
	}
}

// readSome reads what is there.
func readSome(from io.Reader) ([]byte, error) {
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
