package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

const (
	// These limits apply only without a known-good entity. The source is then unhealthy if two
	// conditions hold. More than half of the last windowSize calls failed, on at least minEntities
	// entities. And more than half of the entities called since the first of these failures failed
	// too.
	windowSize  = 20
	minEntities = 5
	// minRefused is how many entities in a row must be refused before the fault is attributed to
	// their credential or scope. It applies only without a known-good entity.
	minRefused = 3
	// holdAfter is the number of consecutive failed calls after which new calls of the facet wait
	// for the end of the running confirming calls.
	holdAfter = 11
	// healthyTTL is how long a good answer proves that its endpoint is healthy.
	healthyTTL = time.Minute
	// The first probe of an open endpoint follows after endpointPause; the pause doubles up to
	// endpointMaxPause.
	endpointPause    = 5 * time.Second
	endpointMaxPause = time.Minute
	// maxSyncDelay is the maximum delay until this process knows that a breaker has opened.
	maxSyncDelay = time.Minute
)

// Health attributes failures of one source by the outcomes of its calls in this process (see
// doc.go). The workers of both lanes share one Health. Its methods may be called concurrently.
type Health struct {
	mu             sync.Mutex
	sourceWindow   window
	facets         map[string]*facetHealth
	unhealthy      bool                        // this process considers the source unhealthy
	unhealthySince time.Time                   // when it became unhealthy
	endpoints      map[string]*endpointBreaker // facets whose own breaker is open
	refused        map[string]*refusals        // by scope: entities refused since its last good answer
	runs           map[string]*confirmRun      // by faultQuery.key
	changed        chan struct{}               // closed when a verdict may have changed; nil while nothing waits
}

// NewHealth returns the health of a source that has not failed yet.
func NewHealth() *Health {
	return &Health{
		facets: map[string]*facetHealth{}, endpoints: map[string]*endpointBreaker{},
		refused: map[string]*refusals{}, runs: map[string]*confirmRun{},
	}
}

// facetHealth is the health of one facet.
type facetHealth struct {
	window
	good   [2]callEnd // the last good answers, of two different entities
	streak int        // failed calls since the last good answer
	known  []*knownGood
}

type callEnd struct {
	entity     schemas.Entity
	credential string
	first      time.Time // when the first of the consecutive tries began
	began      time.Time
	failed     bool
}

// window holds the last calls, and the last call of each of the last entities. An entity's
// position is that of its first try.
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
	if e.first.Equal(e.began) { // a repeated try of an entity that was dropped is not added again
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
		case e.began.Before(since): // or the element is empty
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
	nextProbe time.Time // earliest time of the next probe
	pause     time.Duration
}

// diagnosis is the effect of a call's end on more than its entity.
type diagnosis int

const (
	noDiagnosis  diagnosis = iota // none
	recovered                     // a breaker has closed
	sourceOpen                    // the source's breaker was open before
	sourceOpened                  // this call has opened the source's breaker
	endpointOpen                  // the facet's breaker is open
)

// open reports whether a breaker is open, so that the call's end says nothing about its entity.
func (d diagnosis) open() bool { return d == sourceOpen || d == sourceOpened || d == endpointOpen }

// evidence names the subject that an outcome is evidence about.
type evidence int

const (
	goodAnswer     evidence = iota
	sourceEvidence          // failure of the source
	entityEvidence          // failure of the entity, or of the source if the entity is known-good
	scopeEvidence           // refusal of a credential or quota, or maintenance
)

// record adds the end of a call and returns the diagnosis. known says whether the entity is
// known-good. openSince reports whether the source's breaker, opened by any process, was open at any
// time since then.
func (h *Health) record(end callEnd, subject evidence, known bool, openSince func(since time.Time) bool) diagnosis {
	h.mu.Lock()
	defer h.mu.Unlock()
	stopped := openSince(end.began)
	if h.unhealthy && !stopped && (openSince(h.unhealthySince) || end.began.Sub(h.unhealthySince) > maxSyncDelay) {
		h.reset() // another process has closed the breaker, or Redis has lost it
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
		return sourceOpen // another process has opened it
	}
	return d
}

// reset forgets all failures of the source.
func (h *Health) reset() {
	h.unhealthy, h.sourceWindow = false, window{}
	for _, f := range h.facets {
		f.reset()
	}
}

func (f *facetHealth) reset() {
	f.window, f.streak = window{}, 0
	for _, k := range f.known {
		k.failed = false
	}
}

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
	h.notify()
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
	if before == noDiagnosis && !h.hasCandidate(name) && (f.showsOutage() || h.sourceWindow.showsOutage()) {
		return h.openBreaker(name)
	}
	return before
}

// openBreaker opens the breaker of the facet, or that of the source unless another facet in use is
// healthy.
func (h *Health) openBreaker(facet string) diagnosis {
	defer h.notify()
	if h.otherFacetHealthy(facet, time.Now()) {
		h.endpoints[facet] = &endpointBreaker{nextProbe: time.Now().Add(endpointPause), pause: endpointPause}
		h.sourceWindow = window{} // the source as a whole is healthy
		return endpointOpen
	}
	// The windows restart empty: if Redis loses the open breaker, the next calls detect the outage
	// again.
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

// otherFacetHealthy reports whether another facet with a closed breaker had a good answer within
// healthyTTL.
func (h *Health) otherFacetHealthy(facet string, now time.Time) bool {
	for name, f := range h.facets {
		if name != facet && h.endpoints[name] == nil && !f.good[0].began.IsZero() && now.Sub(f.good[0].began) < healthyTTL {
			return true
		}
	}
	return false
}

func (h *Health) notify() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// changeSignal returns a channel that is closed at the next change. The caller holds h.mu.
func (h *Health) changeSignal() <-chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// admit reports whether a call to the facet may be made now. While the facet's breaker is open,
// only one call after each pause is allowed. If a known-good entity exists, it is returned as the
// probe instead.
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
	if probe := h.facet(facet).nextProbe(); probe != nil {
		return false, probe
	}
	return true, nil
}

// awaitConfirm waits, for at most a second, while all calls of the facet fail and a confirming
// call is running.
func (h *Health) awaitConfirm(ctx context.Context, facet string) {
	limit := time.Now().Add(time.Second)
	for {
		h.mu.Lock()
		run := h.runs[facet]
		if h.facet(facet).streak < holdAfter || run == nil || !run.active || !time.Now().Before(limit) {
			h.mu.Unlock()
			return
		}
		changed := h.changeSignal()
		h.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(time.Until(limit)):
		case <-ctx.Done():
			return
		}
	}
}

// evidenceOf returns the evidence in an outcome.
func evidenceOf(o source.Outcome) evidence {
	switch o.Class {
	case source.OK, source.NotModified, source.NotFound, source.NotReady:
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
