package consumer

import (
	"context"
	"errors"
	"sync"

	"github.com/freshet/freshet/source"
)

// gates block upstream calls while a condition holds. Records behind a closed gate wait, and the
// worker stays in its consumer group.
type gates struct {
	mu      sync.Mutex
	closed  map[gate]struct{}
	changed chan struct{} // closed when a gate opens, and then replaced by a new channel
	// low holds one signal for each LOW call that may be made although gateYield is closed.
	low chan struct{}
	// tokens blocks calls until their credential has a valid token; nil means that no credential
	// renews itself.
	tokens Tokens
}

type gate string

const (
	gateDatabase gate = "database" // this gate blocks calls while the database's breaker is open or half-open
	gateYield    gate = "yield"    // this gate blocks calls of a LOW worker while LOW yields to HIGH
)

func newGates(tokens Tokens) *gates {
	return &gates{tokens: tokens, closed: map[gate]struct{}{}, changed: make(chan struct{}), low: make(chan struct{})}
}

// passLow lets one waiting LOW call continue, if no gate except gateYield is closed.
func (g *gates) passLow() {
	select {
	case g.low <- struct{}{}:
	default:
	}
}

// set opens or closes a gate.
func (g *gates) set(which gate, open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !open {
		g.closed[which] = struct{}{}
		return
	}
	delete(g.closed, which)
	close(g.changed)
	g.changed = make(chan struct{})
}

// wait blocks until all gates are open, or until passLow lets this call continue. It returns an error
// when ctx ends.
func (g *gates) wait(ctx context.Context) error {
	for {
		g.mu.Lock()
		n, changed, low := len(g.closed), g.changed, g.low
		if _, yields := g.closed[gateYield]; n > 1 || !yields {
			low = nil
		}
		g.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-low:
			return nil
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// renewed reports whether the call failed because of its token, and can be repeated with a newer one.
// It waits for the renewal of a token that the upstream refused.
func (g *gates) renewed(ctx context.Context, o source.Outcome) bool {
	if g.tokens == nil {
		return false
	}
	if errors.Is(o.Err, source.ErrTokenEnded) {
		return true // the token expired while the call waited for its connection; Await waits for the next one
	}
	c, sent := o.Permit.(*call)
	return sent && o.Class == source.AuthRefused && o.Block == source.BlockCredential && c.result.Generation > 0 &&
		g.tokens.Refused(ctx, c.Credential(), c.result.Generation)
}
