package virtual

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/freshet/freshet/app"
)

// The addresses of the services in the network in memory.
const (
	kafkaAddress    = "127.0.0.1:9092"
	redisAddress    = "127.0.0.1:6379"
	upstreamAddress = "127.0.0.1:8000"
)

// oracleName is the name of the oracle in the network. Faults that affect all processes do not affect
// the oracle.
const oracleName = "oracle"

// link names the connections from a process to a service. A "" matches every process.
type link struct{ from, to string }

// matches reports whether l includes the connection c. Instances of a process are named
// process#number.
func (l link) matches(c link) bool {
	process, _, _ := strings.Cut(c.from, "#")
	return l.to == c.to && (l.from == "" && process != oracleName || l.from == process || l.from == c.from)
}

// network is a network in memory, with faults.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	conns     map[*conn]link
	faults    linkFaults
	dead      map[string]bool // instances of processes that were killed
	changed   chan struct{}   // a channel that is closed when the field faults or the field dead changes
}

func newNetwork() *network {
	return &network{
		listeners: map[string]*listener{}, conns: map[*conn]link{},
		dead: map[string]bool{}, changed: make(chan struct{}),
	}
}

func anyMatches(links map[link]bool, c link) bool {
	for l := range links {
		if l.matches(c) {
			return true
		}
	}
	return false
}

// errDialTimeout is the error of a new connection to Redis while its link is stalled. The dialer returns
// it at once: the Redis client holds a mutex while it connects, and the virtual time stops while a
// goroutine waits for a mutex.
var errDialTimeout = &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}

// dialer returns the dialer of an instance of a process.
func (n *network) dialer(from string) app.Dialer {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		to := link{from, address}
		for {
			n.mu.Lock()
			changed, listener := n.changed, n.listeners[address]
			refused, stalled := n.dead[from] || listener == nil || anyMatches(n.faults.refused, to), anyMatches(n.faults.stalled, to)
			n.mu.Unlock()
			switch {
			case refused:
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			case !stalled:
				return n.connect(ctx, to, listener)
			case address == redisAddress:
				return nil, errDialTimeout
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-changed:
			}
		}
	}
}

func (n *network) connect(ctx context.Context, to link, l *listener) (net.Conn, error) {
	client, server := newPipe(tcpAddr("127.0.0.1:1"), l.Addr())
	client.onClose = sync.OnceFunc(func() {
		n.mu.Lock()
		delete(n.conns, client)
		n.mu.Unlock()
	})
	n.mu.Lock()
	n.conns[client] = to
	n.mu.Unlock()
	select {
	case l.accepted <- server:
		return client, nil
	case <-l.closed:
		client.cut()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		client.cut()
		return nil, ctx.Err()
	}
}

func (n *network) change(update func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	update()
	close(n.changed)
	n.changed = make(chan struct{})
}

// each calls f for each connection of a link.
func (n *network) each(l link, f func(*conn)) {
	n.mu.Lock()
	var found []*conn
	for c, of := range n.conns {
		if l.matches(of) {
			found = append(found, c)
		}
	}
	n.mu.Unlock()
	for _, c := range found {
		f(c)
	}
}

// linkFaults are the links with faults.
type linkFaults struct {
	refused map[link]bool // the connections of these links are closed, and new connections are refused
	// Data on these links does not arrive until the fault ends. New connections wait until then, or
	// fail (errDialTimeout).
	stalled map[link]bool
}

// apply ends the current faults of the network and starts the given ones.
func (n *network) apply(faults linkFaults) {
	n.change(func() { n.faults = faults })
	n.mu.Lock()
	var cut []*conn
	for c, of := range n.conns {
		if anyMatches(faults.refused, of) {
			cut = append(cut, c)
		} else {
			c.stall(anyMatches(faults.stalled, of))
		}
	}
	n.mu.Unlock()
	for _, c := range cut {
		c.cut()
	}
}

// kill closes all connections of an instance and refuses new ones.
func (n *network) kill(instance string) {
	n.change(func() { n.dead[instance] = true })
	for _, to := range []string{kafkaAddress, redisAddress, upstreamAddress} {
		n.each(link{instance, to}, (*conn).cut)
	}
}

// unbind closes the listener at an address.
func (n *network) unbind(address string) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
}

// listener accepts connections in memory.
type listener struct {
	address  string
	accepted chan *conn
	closed   chan struct{}
	close    func()
}

// Listen binds an address. Its signature is that of net.Listen.
func (n *network) Listen(_, address string) (net.Listener, error) {
	l := &listener{address: address, accepted: make(chan *conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() {
		n.change(func() {
			if n.listeners[address] == l {
				delete(n.listeners, address)
			}
		})
		close(l.closed)
		n.each(link{"", address}, (*conn).cut)
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		return nil, fmt.Errorf("%s is in use", address)
	}
	n.listeners[address] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close unbinds the address.
func (l *listener) Close() error {
	l.close()
	return nil
}

func (l *listener) Addr() net.Addr { return tcpAddr(l.address) }

func tcpAddr(address string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
}
