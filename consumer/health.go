package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

const (
	// More than half of the last lookBack calls, of at least sickEntities entities, have
	// to fail before the upstream and not the entities are taken to be sick, and more
	// than half of the entities that were called since the first of those failed. By the
	// calls alone a fifth of the entities would look like half of the upstream: one that
	// fails is called two or three times where another is called once, and last where
	// many are called in a row.
	lookBack     = 20
	sickEntities = 5
	// vouchFor is how long an answered call tells that another endpoint is well.
	vouchFor = time.Minute
	// A sick endpoint of a source that is well otherwise is probed after so long,
	// and then after twice as long each time.
	endpointFirst = 5 * time.Second
	endpointMost  = time.Minute
	// learnWithin is how long it may take until a stop that was told of is known here.
	learnWithin = time.Minute
)

// Health tells a sick upstream from sick entities, by how the last calls of one
// source ended in this process. Its lanes share one.
//
// Invariants:
//   - What is found sick is sick until a call is answered well, and no sooner.
//   - Whatever a call of something sick came to is not its entity's failure.
type Health struct {
	mu        sync.Mutex
	all       window
	facets    map[string]*window
	sick      bool                 // the source as a whole
	since     time.Time            // it was found so
	endpoints map[string]*sickness // facets that are sick while others are well
	good      [2]ended             // the last good ends, of two entities
	changed   chan struct{}        // closed when something is answered well or found sick; nil while nobody waits
}

// NewHealth returns a source's health, of which nothing bad is known.
func NewHealth() *Health {
	return &Health{facets: map[string]*window{}, endpoints: map[string]*sickness{}}
}

type ended struct {
	entity schemas.Entity
	first  time.Time // the first call of the tries in a row began
	began  time.Time
	bad    bool
}

// window is how the last calls ended, and how the last call for each of the entities did
// that came last: those that are tried again came when they were tried first.
type window struct {
	calls    [lookBack]ended
	next     int
	entities [lookBack]ended
	place    int
}

func (w *window) add(e ended) {
	w.calls[w.next%lookBack] = e
	w.next++
	for i, known := range w.entities {
		if known.entity == e.entity {
			w.entities[i] = e
			return
		}
	}
	if e.first.Equal(e.began) { // otherwise it was here, and others have driven it out
		w.entities[w.place%lookBack] = e
		w.place++
	}
}

// tells reports whether the window shows something sick.
func (w *window) tells() bool {
	bad, entities, since := 0, map[schemas.Entity]struct{}{}, time.Time{}
	for _, e := range w.calls {
		if e.bad {
			bad++
			entities[e.entity] = struct{}{}
			if since.IsZero() || e.first.Before(since) {
				since = e.first
			}
		}
	}
	if 2*bad <= lookBack || len(entities) < sickEntities {
		return false
	}
	sick, well := 0, 0
	for _, e := range w.entities {
		switch {
		case e.began.Before(since): // or there is none
		case e.bad:
			sick++
		default:
			well++
		}
	}
	return sick > well
}

// sickness is an endpoint's that is probed.
type sickness struct {
	probe time.Time // not before
	pause time.Duration
}

// diagnosis is what the end of a call tells of more than its entity.
type diagnosis int

const (
	nothing      diagnosis = iota // the entity's own end
	recovered                     // what was sick is well again
	sickSource                    // the source is sick, as is known
	fellSick                      // and was not known
	sickEndpoint                  // the facet's endpoint is, and others are well
)

// sick reports whether the end says nothing of its entity.
func (d diagnosis) sick() bool { return d == sickSource || d == fellSick || d == sickEndpoint }

// saw takes in how a call ended that began then, and the tries in a row that it belongs to
// at first; probed says whether a stop of the source, whichever process began it, is or
// was in force at any time since. A refused credential, a brake and a maintenance tell
// nothing: each has a way of its own.
func (h *Health) saw(e schemas.Entity, class source.Class, first, began time.Time, probed func(since time.Time) bool) diagnosis {
	h.mu.Lock()
	defer h.mu.Unlock()
	stopped := probed(began)
	if h.sick && !stopped && (probed(h.since) || began.Sub(h.since) > learnWithin) {
		h.forget() // the stop is over: another process has seen the upstream well, or Redis has lost it
	}
	end := ended{entity: e, first: first, began: began}
	switch class {
	case source.OK, source.NotModified, source.Absent, source.NotReady:
		return h.well(end)
	case source.Transient, source.Permanent, source.BadContent:
		end.bad = true
		if d := h.ill(end); d != nothing || !stopped {
			return d
		}
		return sickSource // as another process has found
	case source.Quota, source.Maintenance, source.AuthRefused:
	}
	return h.of(e.Facet)
}

// forget ends what is known of a sick source.
func (h *Health) forget() {
	h.sick, h.all = false, window{}
	clear(h.facets)
}

func (h *Health) of(facet string) diagnosis {
	switch {
	case h.sick:
		return sickSource
	case h.endpoints[facet] != nil:
		return sickEndpoint
	}
	return nothing
}

func (h *Health) well(end ended) diagnosis {
	before := h.of(end.entity.Facet)
	switch before {
	case sickSource:
		h.forget()
	case sickEndpoint:
		delete(h.endpoints, end.entity.Facet)
		delete(h.facets, end.entity.Facet)
	case nothing, recovered, fellSick:
	}
	h.all.add(end)
	h.facet(end.entity.Facet).add(end)
	if end.entity != h.good[0].entity {
		h.good[1] = h.good[0]
	}
	if end.entity != h.good[0].entity || end.began.After(h.good[0].began) {
		h.good[0] = end
	}
	h.tell()
	if before.sick() {
		return recovered
	}
	return nothing
}

func (h *Health) ill(end ended) diagnosis {
	facet := end.entity.Facet
	before := h.of(facet)
	if before == sickEndpoint {
		return before
	}
	h.all.add(end)
	own := h.facet(facet)
	own.add(end)
	switch {
	case own.tells() && h.otherIsWell(facet, time.Now()):
		h.endpoints[facet] = &sickness{probe: time.Now().Add(endpointFirst), pause: endpointFirst}
		h.all = window{} // it is not the source's
		h.tell()
		return sickEndpoint
	case own.tells() || h.all.tells():
		// The windows begin anew: should the stop be forgotten by Redis, the calls
		// that then go out show it once more.
		h.sick, h.since, h.all = true, time.Now(), window{}
		clear(h.facets)
		h.tell()
		return fellSick
	}
	return before
}

func (h *Health) facet(name string) *window {
	w := h.facets[name]
	if w == nil {
		w = &window{}
		h.facets[name] = w
	}
	return w
}

// otherIsWell reports whether another facet has been answered well lately.
func (h *Health) otherIsWell(facet string, now time.Time) bool {
	for name, w := range h.facets {
		if name == facet || h.endpoints[name] != nil {
			continue
		}
		for _, e := range w.calls {
			if !e.bad && !e.began.IsZero() && now.Sub(e.began) < vouchFor {
				return true
			}
		}
	}
	return false
}

func (h *Health) tell() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// admits reports whether a call to the facet may be made now: to one that is
// sick, one call after each pause.
func (h *Health) admits(facet string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := h.endpoints[facet], time.Now()
	switch {
	case s == nil:
		return true
	case now.Before(s.probe):
		return false
	}
	s.pause = min(2*s.pause, endpointMost)
	s.probe = now.Add(s.pause)
	return true
}

// ails reports whether the facet's source or endpoint is found sick.
func (h *Health) ails(facet string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of(facet).sick()
}

// awaitGood waits until a call for another entity of the facet that began after then
// was answered well. It reports false if that does not happen within d, or the
// upstream is found sick.
func (h *Health) awaitGood(ctx context.Context, e schemas.Entity, then time.Time, d time.Duration) bool {
	limit := time.NewTimer(d)
	defer limit.Stop()
	for {
		h.mu.Lock()
		for _, g := range h.good {
			if g.entity != e && g.entity.Facet == e.Facet && g.began.After(then) {
				h.mu.Unlock()
				return true
			}
		}
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		sick, changed := h.of(e.Facet).sick(), h.changed
		h.mu.Unlock()
		if sick {
			return false
		}
		select {
		case <-changed:
		case <-limit.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
