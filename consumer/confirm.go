package consumer

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// maxKnownGood is how many known-good entities of each facet are kept in memory.
	maxKnownGood = 16
	// maxScopes is the maximum number of entries in confirmations.refused, and in confirmations.runs.
	maxScopes = 1000
)

// confirmations holds the known-good entities of a source, the refusals of each scope and the runs of
// confirming calls. Health uses them to decide whether a failure is confirmed (see doc.go). Its methods
// may be called concurrently, also while the caller holds Health.mu. They never lock Health.mu.
type confirmations struct {
	mu      sync.Mutex              // guards all fields, and the field failed of each known-good entity
	known   map[string][]*knownGood // the known-good entities of each facet; map key: facet
	refused map[string]*refusals    // the entities that the upstream refused in each scope since the scope's last successful call; map key: faultQuery.key
	runs    map[string]*confirmRun  // the runs of confirming calls; map key: faultQuery.key
}

func newConfirmations() *confirmations {
	return &confirmations{known: map[string][]*knownGood{}, refused: map[string]*refusals{}, runs: map[string]*confirmRun{}}
}

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
func (c *confirmations) recordKnownGood(t *task, answered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := t.request.Entity
	known := c.known[e.Facet]
	for i, k := range known {
		if k.entity != e {
			continue
		}
		if answered {
			k.failed = false
			copy(known[1:i+1], known[:i])
			known[0] = k
		}
		return
	}
	k := &knownGood{entity: e, taskParams: t.taskParams, stored: t.stored}
	switch {
	case answered:
		known = append([]*knownGood{k}, known...)
		known = known[:min(len(known), maxKnownGood)]
	case len(known) < maxKnownGood:
		known = append(known, k)
	default: // known is full, and the entity only has a stored snapshot: it replaces a random entity in the second half of known
		known[maxKnownGood/2+rand.IntN(maxKnownGood/2)] = k //nolint:gosec // the random number is not a secret
	}
	c.known[e.Facet] = known
}

// isKnownGood reports whether the entity is known-good.
func (c *confirmations) isKnownGood(t *task) bool {
	if t.stored.HasContent() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.known[t.request.Facet] {
		if k.entity == t.request.Entity {
			return true
		}
	}
	return false
}

// candidate returns a known-good entity of the facet that has not failed and is not listed in
// `except`. It returns nil if there is none.
func (c *confirmations) candidate(facet string, except map[schemas.Entity]bool) *knownGood {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.known[facet] {
		if !k.failed && !except[k.entity] {
			return k
		}
	}
	return nil
}

// nextProbe returns the known-good entity of any facet to probe with next, or nil.
func (c *confirmations) nextProbe() *knownGood {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed *knownGood
	for _, known := range c.known {
		if k := rotateProbe(known); k != nil {
			if !k.failed {
				return k
			}
			failed = k
		}
	}
	return failed
}

// nextFacetProbe returns the facet's known-good entity to probe with next, or nil.
func (c *confirmations) nextFacetProbe(facet string) *knownGood {
	c.mu.Lock()
	defer c.mu.Unlock()
	return rotateProbe(c.known[facet])
}

// rotateProbe returns the known-good entity to probe with next, and moves it to the end of `known`. It
// returns an entity that has not failed. If all have failed, it returns the entity that it has not
// returned for the longest time. The caller holds confirmations.mu.
func rotateProbe(known []*knownGood) *knownGood {
	if len(known) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(known, func(k *knownGood) bool { return !k.failed }))
	k := known[i]
	copy(known[i:], known[i+1:])
	known[len(known)-1] = k
	return k
}

// recordFailure records that a known-good entity failed.
func (c *confirmations) recordFailure(k *knownGood) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.failed = true
}

// clearFailures deletes the recorded failures of all known-good entities.
func (c *confirmations) clearFailures() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.known {
		for _, k := range known {
			k.failed = false
		}
	}
}

// clearFacetFailures deletes the recorded failures of the facet's known-good entities.
func (c *confirmations) clearFacetFailures(facet string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.known[facet] {
		k.failed = false
	}
}

// recordRefusal records that the upstream refused the query's entity in the query's scope.
func (c *confirmations) recordRefusal(q faultQuery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.refused[q.key()]
	if r == nil {
		if len(c.refused) >= maxScopes {
			clear(c.refused)
		}
		r = &refusals{map[schemas.Entity]struct{}{}}
		c.refused[q.key()] = r
	}
	if len(r.entities) < minRefused {
		r.entities[q.entity] = struct{}{}
	}
}

// clearRefusals deletes the refusals of the scopes with these keys, because a call in each of these
// scopes succeeded.
func (c *confirmations) clearRefusals(keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		delete(c.refused, key)
	}
}

// beginRun reports whether the caller must make the confirming calls. If so, it registers them as
// the active run of the query. It reports false while another run of the query is active.
func (c *confirmations) beginRun(q faultQuery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	run := c.runs[q.key()]
	if run != nil && run.active {
		return false
	}
	if len(c.runs) >= maxScopes {
		clear(c.runs)
	}
	c.runs[q.key()] = &confirmRun{active: true}
	return true
}

// endRun ends the query's run and saves its verdict. The caller holds Health.mu, and sends
// Health.changed before it unlocks Health.mu. So a goroutine that has found no verdict under Health.mu
// gets the signal.
func (c *confirmations) endRun(q faultQuery, started time.Time, v verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[q.key()] = &confirmRun{started: started, verdict: v}
}

// runActive reports whether the run of the facet's queries without a scope is active.
func (c *confirmations) runActive(facet string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	run := c.runs[facet]
	return run != nil && run.active
}

// runVerdict returns the verdict of the query's last run, if the run has ended and did not start
// before the failure was observed. Without enough known-good entities the verdict depends on the
// refusals of the scope.
func (c *confirmations) runVerdict(q faultQuery) (v verdict, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	run := c.runs[q.key()]
	if run == nil || run.active || run.started.Before(q.after) {
		return faultUnknown, false
	}
	if r := c.refused[q.key()]; run.verdict == noKnownGood && r != nil && len(r.entities) >= minRefused {
		return sharedFault, true
	}
	return run.verdict, true
}
