package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

const (
	// More than half of the last lookBack calls, of at least minEntities entities, have
	// to fail before the source and not the entities is unhealthy, and more than half of
	// the entities that were called since the first of those failed. This rule decides
	// only where no known-good entity can be asked.
	windowSize  = 20
	minEntities = 5
	// minRefused is how many entities in a row have to be refused before the refusal is
	// believed of their credential or scope, where no known-good entity can be asked.
	minRefused = 3
	// holdAfter is the number of failed calls in a row after which new calls of the facet
	// wait for the confirming call that is in flight.
	holdAfter = 11
	// healthyTTL is how long an answered call tells that another endpoint is healthy.
	healthyTTL = time.Minute
	// The probes of an open endpoint begin after endpointFirst; the interval doubles.
	endpointPause    = 5 * time.Second
	endpointMaxPause = time.Minute
	// maxSyncDelay is how long it may take until an open breaker is known here.
	maxSyncDelay = time.Minute
)

// Health judges one source by how its calls ended in this process (see doc.go). The
// workers of both lanes share one. Its methods may be called concurrently.
type Health struct {
	mu             sync.Mutex
	sourceWindow   window
	facets         map[string]*facetHealth
	unhealthy      bool                        // the source as a whole
	unhealthySince time.Time                   // it was found so
	endpoints      map[string]*endpointBreaker // facets whose own breaker is open
	refused        map[string]*refusals        // by scope: the entities refused since its last good answer
	runs           map[string]*confirmRun      // by facet and scope
	changed        chan struct{}               // closed when an answer or a run changes something; nil while nobody waits
}

// NewHealth returns a source's health, of which nothing bad is known.
func NewHealth() *Health {
	return &Health{
		facets: map[string]*facetHealth{}, endpoints: map[string]*endpointBreaker{},
		refused: map[string]*refusals{}, runs: map[string]*confirmRun{},
	}
}

// facetHealth is what is known of one facet.
type facetHealth struct {
	window
	good   [2]callEnd // the last good ends, of two entities
	streak int        // failed calls since the last good one
	known  []*knownGood
}

type callEnd struct {
	entity     schemas.Entity
	credential string
	first      time.Time // the first call of the tries in a row began
	began      time.Time
	failed     bool
}

// window is how the last calls ended, and how the last call for each of the entities did
// that came last: those that are tried again came when they were tried first.
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
	if e.first.Equal(e.began) { // otherwise it was here, and others have driven it out
		w.entities[w.nextEntity%windowSize] = e
		w.nextEntity++
	}
}

// showsOutage reports whether the window shows an unhealthy source.
func (w *window) showsOutage() bool {
	bad, entities, since := 0, map[schemas.Entity]struct{}{}, time.Time{}
	for _, e := range w.calls {
		if e.failed {
			bad++
			entities[e.entity] = struct{}{}
			if since.IsZero() || e.first.Before(since) {
				since = e.first
			}
		}
	}
	if 2*bad <= windowSize || len(entities) < minEntities {
		return false
	}
	failing, well := 0, 0
	for _, e := range w.entities {
		switch {
		case e.began.Before(since): // or there is none
		case e.failed:
			failing++
		default:
			well++
		}
	}
	return failing > well
}

// endpointBreaker is the open breaker of one facet.
type endpointBreaker struct {
	nextProbe time.Time // not before
	pause     time.Duration
}

// diagnosis is what the end of a call tells of more than its entity.
type diagnosis int

const (
	noDiagnosis  diagnosis = iota // the entity's own end
	recovered                     // a breaker closes
	sourceOpen                    // the source's breaker is open, as is known
	sourceOpened                  // and was not known
	endpointOpen                  // the facet's breaker is open
)

// open reports whether the end says nothing of its entity.
func (d diagnosis) open() bool { return d == sourceOpen || d == sourceOpened || d == endpointOpen }

// evidence is what an answer is evidence about.
type evidence int

const (
	goodAnswer     evidence = iota
	sourceEvidence          // a failure of the source by itself
	entityEvidence          // a failure of the entity, unless it is known-good
	scopeEvidence           // a refusal: of a credential, a quota; or a maintenance
)

// record takes in how a call ended. probed says whether the source's breaker, whichever
// process opened it, is or was open at any time since.
func (h *Health) record(end callEnd, what evidence, known bool, probed func(since time.Time) bool) diagnosis {
	h.mu.Lock()
	defer h.mu.Unlock()
	stopped := probed(end.began)
	if h.unhealthy && !stopped && (probed(h.unhealthySince) || end.began.Sub(h.unhealthySince) > maxSyncDelay) {
		h.reset() // another process has closed it, or Redis has lost it
	}
	d := h.breakerState(end.entity.Facet)
	switch {
	case what == goodAnswer:
		return h.recordGood(end)
	case what == sourceEvidence || (what == entityEvidence && known):
		end.failed = true
		d = h.recordBad(end)
	}
	if d == noDiagnosis && stopped && what != scopeEvidence {
		return sourceOpen // as another process has found
	}
	return d
}

// reset ends what is known of an unhealthy source.
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

// recordBad takes in evidence against the source. It opens a breaker by itself only where
// no known-good entity can be asked.
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

// openBreaker opens the breaker of the facet, or of the source if no other facet in use is
// healthy.
func (h *Health) openBreaker(facet string) diagnosis {
	defer h.notify()
	if h.otherFacetHealthy(facet, time.Now()) {
		h.endpoints[facet] = &endpointBreaker{nextProbe: time.Now().Add(endpointPause), pause: endpointPause}
		h.sourceWindow = window{} // it is not the source's
		return endpointOpen
	}
	// The windows begin anew: should the open breaker be forgotten by Redis, the calls
	// that are then sent show it once more.
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

// otherFacetHealthy reports whether another facet, whose breaker is closed, has been answered
// well lately.
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

// changeSignal returns a channel that is closed when something changes. The caller holds h.mu.
func (h *Health) changeSignal() <-chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// admit reports whether a call to the facet may be made now: to one whose breaker is
// open, one call after each pause. That one is for a known-good entity, if there is one.
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

// awaitConfirm waits, for a second at most, while nothing but failures came back of the facet
// and a confirming call is in flight.
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

// evidenceOf returns what an outcome is evidence about.
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
