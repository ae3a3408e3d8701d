package consumer

import (
	"errors"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

const (
	// These limits apply only without a known-good entity. The source is then unhealthy if two
	// conditions hold:
	// - More than half of the last windowSize calls failed, and the failed calls belong to at least
	//   minEntities entities.
	// - Among the entities that were called since the first of the failed calls, more entities have a
	//   failed last call than a successful last call.
	windowSize  = 20
	minEntities = 5
	// minRefused is how many different entities in a row the upstream must refuse before the fault
	// is attributed to their credential or scope. It applies only without a known-good entity.
	minRefused = 3
	// healthyTTL is how long a successful call proves that its facet's endpoint is healthy.
	healthyTTL = time.Minute
	// When the breaker of an endpoint opens, the first probe follows after endpointPause. The pause
	// doubles after each probe, up to endpointMaxPause.
	endpointPause    = 5 * time.Second
	endpointMaxPause = time.Minute
	// maxSyncDelay is the maximum delay until the limiter of this process knows that the source's
	// breaker has opened in Redis.
	maxSyncDelay = time.Minute
)

// Health uses the outcomes of a source's calls in this process to decide whether a failure belongs
// to the source, a facet or an entity (see doc.go). The workers of both lanes share one Health. Its
// methods may be called concurrently.
type Health struct {
	confirmations *confirmations // has its own lock; if both locks are held, mu was locked first

	mu             sync.Mutex // guards the fields below
	sourceWindow   window
	facets         map[string]*facetHealth
	unhealthy      bool                        // this process considers the source unhealthy
	unhealthySince time.Time                   // when this process began to consider the source unhealthy
	endpoints      map[string]*endpointBreaker // facets whose own breaker is open
	changed        signal                      // signals that the breaker of the source or an endpoint may have changed, or that a run of confirming calls has ended
}

// NewHealth returns the Health of a source without any recorded failure.
func NewHealth() *Health {
	return &Health{facets: map[string]*facetHealth{}, endpoints: map[string]*endpointBreaker{}, confirmations: newConfirmations()}
}

// facetHealth has the last calls of one facet, from which Health decides whether the facet's endpoint
// fails.
type facetHealth struct {
	window
	good   [2]callEnd // the last successful calls, of two different entities
	streak int        // failed calls since the last successful call
}

type callEnd struct {
	entity     schemas.Entity
	credential string
	first      time.Time // when the first of the record's consecutive tries began
	began      time.Time
	failed     bool
}

// window holds the last windowSize calls, and the last call of each of the last windowSize
// entities. A repeated try of an entity replaces the element of that entity at its old position.
type window struct {
	calls      [windowSize]callEnd
	next       int
	entities   [windowSize]callEnd
	nextEntity int
}

func (w *window) add(e callEnd) {
	w.calls[w.next%windowSize] = e
	w.next++
	for i, known := range w.entities {
		if known.entity == e.entity {
			w.entities[i] = e
			return
		}
	}
	// Only the first try of a record adds its entity. Newer entities may have replaced this entity
	// since, and later tries must not add it again.
	if e.first.Equal(e.began) {
		w.entities[w.nextEntity%windowSize] = e
		w.nextEntity++
	}
}

// showsOutage reports whether the window proves that the source is unhealthy.
func (w *window) showsOutage() bool {
	failed, entities, since := 0, map[schemas.Entity]struct{}{}, time.Time{}
	for _, e := range w.calls {
		if e.failed {
			failed++
			entities[e.entity] = struct{}{}
			if since.IsZero() || e.first.Before(since) {
				since = e.first
			}
		}
	}
	if 2*failed <= windowSize || len(entities) < minEntities {
		return false
	}
	failing, healthy := 0, 0
	for _, e := range w.entities {
		switch {
		// The last call of this entity began before the first failure, or the element is empty. So the
		// entity counts neither as failing nor as healthy.
		case e.began.Before(since):
		case e.failed:
			failing++
		default:
			healthy++
		}
	}
	return failing > healthy
}

// endpointBreaker is the open breaker of one facet.
type endpointBreaker struct {
	nextProbe time.Time // time before which no probe is sent
	pause     time.Duration
}

// diagnosis says which breaker of the source or the facet is open, opened or closed when a call has
// ended.
type diagnosis int

const (
	noDiagnosis  diagnosis = iota // no breaker is open
	recovered                     // this call has closed the breaker of the source or of the facet
	sourceOpen                    // the source's breaker was open before the call ended
	sourceOpened                  // this call has opened the source's breaker
	endpointOpen                  // only the breaker of the facet is open
)

// open reports whether a breaker is open. If so, a failed call is no evidence against its entity.
func (d diagnosis) open() bool { return d == sourceOpen || d == sourceOpened || d == endpointOpen }

// evidence is the meaning of an outcome: the source works, or the source, the entity or a scope fails.
type evidence int

const (
	goodAnswer     evidence = iota
	sourceEvidence          // the outcome is evidence that the source fails
	entityEvidence          // the outcome is evidence that the entity fails, or that the source fails if the entity is known-good
	scopeEvidence           // the outcome is evidence about a scope: a refused credential, a refused quota, or maintenance
)

// record adds the end of a call and returns the diagnosis. `known` is true if the entity is
// known-good. `openSince` reports whether the source's breaker was open at any time after `since`,
// opened by any process.
func (h *Health) record(end callEnd, subject evidence, known bool, openSince func(since time.Time) bool) diagnosis {
	h.mu.Lock()
	defer h.mu.Unlock()
	stopped := openSince(end.began)
	if h.unhealthy && !stopped && (openSince(h.unhealthySince) || end.began.Sub(h.unhealthySince) > maxSyncDelay) {
		h.reset() // the breaker is no longer open: another process has closed it, or Redis has lost it
	}
	d := h.breakerState(end.entity.Facet)
	switch {
	case subject == goodAnswer:
		return h.recordGood(end)
	case subject == sourceEvidence || (subject == entityEvidence && known):
		end.failed = true
		d = h.recordBad(end)
	}
	if d == noDiagnosis && stopped && subject != scopeEvidence {
		return sourceOpen // another process has opened the source's breaker
	}
	return d
}

// reset deletes all recorded failures of the source.
func (h *Health) reset() {
	h.unhealthy, h.sourceWindow = false, window{}
	for _, f := range h.facets {
		f.reset()
	}
	h.confirmations.clearFailures()
}

func (f *facetHealth) reset() { f.window, f.streak = window{}, 0 }

func (h *Health) breakerState(facet string) diagnosis {
	switch {
	case h.unhealthy:
		return sourceOpen
	case h.endpoints[facet] != nil:
		return endpointOpen
	}
	return noDiagnosis
}

func (h *Health) recordGood(end callEnd) diagnosis {
	name := end.entity.Facet
	before, f := h.breakerState(name), h.facet(name)
	switch before {
	case sourceOpen:
		h.reset()
	case endpointOpen:
		delete(h.endpoints, name)
		f.reset()
		h.confirmations.clearFacetFailures(name)
	case noDiagnosis, recovered, sourceOpened:
	}
	h.sourceWindow.add(end)
	f.add(end)
	f.streak = 0
	if end.entity != f.good[0].entity {
		f.good[1] = f.good[0]
	}
	if end.entity != f.good[0].entity || end.began.After(f.good[0].began) {
		f.good[0] = end
	}
	h.changed.send()
	if before.open() {
		return recovered
	}
	return noDiagnosis
}

// recordBad adds evidence against the source. It opens a breaker only if there is no known-good
// entity that could confirm the failure.
func (h *Health) recordBad(end callEnd) diagnosis {
	name := end.entity.Facet
	before, f := h.breakerState(name), h.facet(name)
	if before == endpointOpen {
		return before
	}
	h.sourceWindow.add(end)
	f.add(end)
	f.streak++
	if before == noDiagnosis && h.confirmations.candidate(name, nil) == nil && (f.showsOutage() || h.sourceWindow.showsOutage()) {
		return h.openBreaker(name)
	}
	return before
}

// openBreaker opens a breaker, because calls of the facet fail. If another facet in use is healthy,
// it opens the breaker of this facet. Otherwise it opens the breaker of the source.
func (h *Health) openBreaker(facet string) diagnosis {
	defer h.changed.send()
	if h.otherFacetHealthy(facet, time.Now()) {
		h.endpoints[facet] = &endpointBreaker{nextProbe: time.Now().Add(endpointPause), pause: endpointPause}
		h.sourceWindow = window{} // another facet is healthy, so the failures do not count against the whole source
		return endpointOpen
	}
	// The recorded calls are deleted. If Redis loses the open breaker, calls are sent again, and
	// this process detects the outage from those new calls.
	h.reset()
	h.unhealthy, h.unhealthySince = true, time.Now()
	clear(h.endpoints)
	return sourceOpened
}

func (h *Health) facet(name string) *facetHealth {
	f := h.facets[name]
	if f == nil {
		f = &facetHealth{}
		h.facets[name] = f
	}
	return f
}

// otherFacetHealthy reports whether a call of another facet succeeded within healthyTTL. Facets with
// an open breaker are ignored.
func (h *Health) otherFacetHealthy(facet string, now time.Time) bool {
	for name, f := range h.facets {
		if name != facet && h.endpoints[name] == nil && !f.good[0].began.IsZero() && now.Sub(f.good[0].began) < healthyTTL {
			return true
		}
	}
	return false
}

// signal wakes all goroutines that wait for it. Its methods must not be called concurrently.
type signal struct{ next chan struct{} }

// send wakes the waiting goroutines.
func (s *signal) send() {
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// wait returns a channel that is closed at the next signal.
func (s *signal) wait() <-chan struct{} {
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

// admit reports whether a call to the facet may be made now. While the facet's breaker is open, only
// one call after each pause is allowed: the probe. If the facet has a known-good entity, admit returns
// that entity for the probe, and `ok` is false: the caller's own call may not be made.
func (h *Health) admit(facet string) (ok bool, probe *knownGood) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := h.endpoints[facet], time.Now()
	switch {
	case s == nil:
		return true, nil
	case now.Before(s.nextProbe):
		return false, nil
	}
	s.pause = min(2*s.pause, endpointMaxPause)
	s.nextProbe = now.Add(s.pause)
	if probe := h.confirmations.nextFacetProbe(facet); probe != nil {
		return false, probe
	}
	return true, nil
}

var errEndpointOpen = errors.New("call not sent: the circuit breaker of the endpoint is open, while other endpoints of the source are healthy")

// endpointDelay returns the delay of a retry while the breaker of the facet's endpoint is open. It is
// twice the pause between two probes: 10 s to 2 min. So after a short outage the retries follow soon.
func (h *Health) endpointDelay(facet string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.endpoints[facet]; s != nil {
		return 2 * s.pause
	}
	return 2 * endpointPause
}

// evidenceOf classifies an outcome: as evidence that the source works, or that the source, the
// entity or a scope fails.
func evidenceOf(o source.Outcome) evidence {
	switch o.Class {
	case source.OK, source.NotModified, source.NotFound, source.Handle, source.NotReady:
		return goodAnswer
	case source.Transient:
		return sourceEvidence
	case source.BadContent:
		if readable(o) {
			return entityEvidence
		}
		return sourceEvidence
	case source.Permanent:
		return entityEvidence
	case source.Quota, source.Maintenance, source.AuthRefused:
	}
	return scopeEvidence
}
