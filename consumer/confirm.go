package consumer

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// maxKnownGood is how many known-good entities of each facet are kept in memory.
	maxKnownGood = 16
	// confirmEntities is how many known-good entities must fail before a failure is attributed to
	// the source or scope (sharedFault).
	confirmEntities = 2
	// confirmDelay is the wait before the first of several confirming calls. If an ordinary call
	// succeeds in that time, no confirming call is necessary.
	confirmDelay = 50 * time.Millisecond
	// maxScopes is the maximum number of entries in Health.refused, and in Health.runs.
	maxScopes = 1000
)

// knownGood is an entity that is suitable for a confirming call or a probe: the upstream has
// returned content for it, or it has a stored snapshot.
type knownGood struct {
	entity schemas.Entity
	taskParams
	stored store.State
	failed bool // a call of this entity has failed since the entity's last successful call
}

// refusals holds the entities whose calls the upstream refused in one scope since the last successful
// call in that scope.
type refusals struct{ entities map[schemas.Entity]struct{} }

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

// confirmRun is the current or the last run of confirming calls for a faultQuery. A run fetches
// known-good entities to find out whether their fetches fail too.
type confirmRun struct {
	active  bool
	started time.Time
	verdict verdict
}

// recordKnownGood adds the task's entity to the known-good entities. `answered` is true if a call for
// the entity has just succeeded (ok or not-modified), and false if the entity only has a stored
// snapshot.
func (h *Health) recordKnownGood(t *task, answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, e := h.facet(t.request.Facet), t.request.Entity
	for i, k := range f.known {
		if k.entity != e {
			continue
		}
		if answered {
			k.failed = false
			copy(f.known[1:i+1], f.known[:i])
			f.known[0] = k
		}
		return
	}
	k := &knownGood{entity: e, taskParams: t.taskParams, stored: t.stored}
	switch {
	case answered:
		f.known = append([]*knownGood{k}, f.known...)
		f.known = f.known[:min(len(f.known), maxKnownGood)]
	case len(f.known) < maxKnownGood:
		f.known = append(f.known, k)
	default: // f.known is full, and the entity only has a stored snapshot: it replaces a random entity in the second half of f.known
		f.known[maxKnownGood/2+rand.IntN(maxKnownGood/2)] = k //nolint:gosec // the random number is not a secret
	}
}

// isKnownGood reports whether the entity is known-good.
func (h *Health) isKnownGood(t *task) bool {
	if t.stored.HasContent() {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.facet(t.request.Facet).known {
		if k.entity == t.request.Entity {
			return true
		}
	}
	return false
}

// hasCandidate reports whether a known-good entity of the facet has not failed.
// The caller holds h.mu.
func (h *Health) hasCandidate(facet string) bool {
	for _, k := range h.facet(facet).known {
		if !k.failed {
			return true
		}
	}
	return false
}

// candidate returns a known-good entity of the facet that has not failed and is not listed in
// `except`. It returns nil if there is none.
func (h *Health) candidate(facet string, except map[schemas.Entity]bool) *knownGood {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.facet(facet).known {
		if !k.failed && !except[k.entity] {
			return k
		}
	}
	return nil
}

// nextProbe returns the known-good entity of any facet to probe with next, or nil.
func (h *Health) nextProbe() *knownGood {
	h.mu.Lock()
	defer h.mu.Unlock()
	var failed *knownGood
	for _, f := range h.facets {
		if k := f.nextProbe(); k != nil {
			if !k.failed {
				return k
			}
			failed = k
		}
	}
	return failed
}

// nextProbe returns the facet's known-good entity to probe with next: an entity that has not
// failed. If all have failed, it returns the entity that it has not returned for the longest time.
func (f *facetHealth) nextProbe() *knownGood {
	if len(f.known) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(f.known, func(k *knownGood) bool { return !k.failed }))
	k := f.known[i]
	f.known = append(slices.Delete(f.known, i, i+1), k)
	return k
}

// recordCandidateFailure records that a known-good entity failed.
func (h *Health) recordCandidateFailure(k *knownGood) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.failed = true
}

// recordRefusal records that the upstream refused the query's entity in the query's scope.
func (h *Health) recordRefusal(q faultQuery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.refused[q.key()]
	if r == nil {
		if len(h.refused) >= maxScopes {
			clear(h.refused)
		}
		r = &refusals{map[schemas.Entity]struct{}{}}
		h.refused[q.key()] = r
	}
	if len(r.entities) < minRefused {
		r.entities[q.entity] = struct{}{}
	}
}

// clearRefusals deletes the refusals of the scopes with these keys, because a call in each of these
// scopes succeeded.
func (h *Health) clearRefusals(keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		delete(h.refused, key)
	}
}

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
	if run := h.runs[q.key()]; run != nil && !run.active && !run.started.Before(q.after) {
		v := run.verdict
		if r := h.refused[q.key()]; v == noKnownGood && r != nil && len(r.entities) >= minRefused {
			v = sharedFault
		}
		return v, true, nil
	}
	return faultUnknown, false, h.changed.wait()
}

// beginRun reports whether the caller must make the confirming calls. If so, it registers them as
// the active run of the query. It reports false while another run of the query is active.
func (h *Health) beginRun(q faultQuery) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	run := h.runs[q.key()]
	if run != nil && run.active {
		return false
	}
	if len(h.runs) >= maxScopes {
		clear(h.runs)
	}
	h.runs[q.key()] = &confirmRun{active: true}
	return true
}

// finishRun ends a run of confirming calls. If the verdict is sharedFault for the source or a
// facet, it opens a breaker and returns which one: sourceOpened or endpointOpen.
func (h *Health) finishRun(q faultQuery, started time.Time, v verdict) (d diagnosis) {
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
	h.runs[q.key()] = &confirmRun{started: started, verdict: v}
	h.changed.send()
	return d
}

// failureStreak returns how many calls of the facet have failed since its last successful call.
func (h *Health) failureStreak(facet string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.facet(facet).streak
}
