package consumer

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
)

const (
	// confirmEntities is how many known-good entities must fail before a failure is attributed to
	// the source or scope (sharedFault).
	confirmEntities = 2
	// confirmDelay is the wait before the first of several confirming calls. If an ordinary call
	// succeeds in that time, no confirming call is necessary.
	confirmDelay = 50 * time.Millisecond
	// holdAfter is the number of consecutive failed calls of a facet after which its new calls wait
	// until the running confirming calls have ended.
	holdAfter = 11
)

// verdict is the cause to which a failure is attributed.
type verdict int

const (
	faultUnknown verdict = iota // no verdict was found in time
	entityFault                 // only this entity fails: another entity succeeded afterwards
	sharedFault                 // the source, the credential or the scope fails
	noKnownGood                 // there are not enough known-good entities for the confirming calls
)

// faultQuery is a failed call whose cause (the entity, a scope or the source) is not known yet.
type faultQuery struct {
	entity     schemas.Entity
	scope      string // key (scopeKey) of the scope that may be at fault; empty means that the whole source may be at fault
	credential string
	after      time.Time // when the failure was observed
}

func (q faultQuery) key() string { return q.entity.Facet + q.scope }

// lookupVerdict returns the verdict for a failure, if it is known. If it is not known yet, the
// channel `changed` is closed when the verdict may have become known.
func (h *Health) lookupVerdict(q faultQuery) (v verdict, known bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.breakerState(q.entity.Facet).open() {
		return sharedFault, true, nil
	}
	for _, g := range h.facet(q.entity.Facet).good {
		if g.entity != q.entity && g.began.After(q.after) && (q.scope == "" || g.credential == q.credential) {
			return entityFault, true, nil
		}
	}
	if v, known = h.confirmations.runVerdict(q); known {
		return v, true, nil
	}
	return faultUnknown, false, h.changed.wait()
}

// applyVerdict ends a run of confirming calls with its verdict. If the verdict is sharedFault for the
// source or a facet, it opens a breaker and returns which one: sourceOpened or endpointOpen.
func (h *Health) applyVerdict(q faultQuery, started time.Time, v verdict) (d diagnosis) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case q.scope != "":
	case v == sharedFault && !h.breakerState(q.entity.Facet).open():
		d = h.openBreaker(q.entity.Facet)
	case v == entityFault: // the source is healthy, so earlier failures no longer count as evidence against it
		h.facet(q.entity.Facet).window = window{}
		h.sourceWindow = window{}
	}
	h.confirmations.endRun(q, started, v)
	h.changed.send()
	return d
}

// failureStreak returns how many calls of the facet have failed since its last successful call.
func (h *Health) failureStreak(facet string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.facet(facet).streak
}

// awaitConfirm waits while a confirming call runs and the last holdAfter calls of the facet have
// failed, but at most one second.
func (h *Health) awaitConfirm(ctx context.Context, facet string) {
	limit := time.Now().Add(time.Second)
	for {
		h.mu.Lock()
		if h.facet(facet).streak < holdAfter || !h.confirmations.runActive(facet) || !time.Now().Before(limit) {
			h.mu.Unlock()
			return
		}
		changed := h.changed.wait()
		h.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(time.Until(limit)):
		case <-ctx.Done():
			return
		}
	}
}
