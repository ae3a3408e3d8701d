package consumer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
)

const (
	// minHintRun is the number of consecutive comparisons of a facet that must find the same
	// changed JSON member before its hint is stored and logged (see Hints).
	minHintRun = 5
	// minHintInterval is the minimum time between two comparisons of a facet. A comparison that
	// finds nothing doubles the interval, from restHintInterval up to maxHintInterval, because each
	// comparison reads a snapshot.
	minHintInterval, restHintInterval, maxHintInterval = time.Second, time.Minute, time.Hour
	// maxHintBytes is the maximum size, in bytes, of content that is compared. `hintTimeout` is the
	// timeout of reading the stored content. `maxHintMembers` is the maximum number of JSON members of
	// a facet whose hints are logged.
	maxHintBytes   = 1 << 20
	hintTimeout    = time.Second
	maxHintMembers = 8
)

// HintStore keeps the hints where other processes can read them.
type HintStore interface {
	// SaveHint stores a hint: at every check of the facet, only this JSON member changes.
	// DeleteHint deletes the facet's hint.
	SaveHint(ctx context.Context, facet, member string) error
	DeleteHint(ctx context.Context, facet string) error
}

// Hints finds JSON members that alone change at every check of a facet, for example the id of a
// request. Such a member carries no information, but because of it each check counts as a change of
// the content. The workers of both lanes of a source share one Hints. Its memory is a few bytes for
// each facet.
type Hints struct {
	store HintStore

	mu     sync.Mutex
	facets map[string]*facetHint
}

// facetHint is the state of the search in one facet for a JSON member that is the only change at
// every check.
type facetHint struct {
	next     time.Time     // time before which no comparison is made
	interval time.Duration // minimum time between two comparisons
	member   string        // the member that each of the last comparisons found as the only change
	run      int           // number of consecutive comparisons that found `member`
	reported []string      // members whose hint was logged
	deleted  bool          // the stored hint has been deleted
}

// NewHints returns the hints of one source.
func NewHints(store HintStore) *Hints { return &Hints{store: store, facets: map[string]*facetHint{}} }

func (h *Hints) facet(name string) *facetHint {
	f := h.facets[name]
	if f == nil {
		f = &facetHint{interval: minHintInterval}
		h.facets[name] = f
	}
	return f
}

// due reports whether the changed content of a check should be compared with the stored content of
// its entity.
func (h *Hints) due(facet string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.facet(facet)
	if now.Before(f.next) {
		return false
	}
	f.next = now.Add(f.interval)
	return true
}

// rest resets the changed member and its count, and lengthens the interval to the next comparison.
func (f *facetHint) rest(now time.Time) {
	f.member, f.run = "", 0
	f.interval = min(max(2*f.interval, restHintInterval), maxHintInterval)
	f.next = now.Add(f.interval)
}

// unchanged records a check that found no change. It reports whether a stored hint must be deleted.
func (h *Hints) unchanged(facet string, now time.Time) (remove bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.facet(facet)
	if f.run > 0 {
		f.rest(now)
	}
	remove, f.deleted = !f.deleted, true
	return remove
}

// compared records the result of a comparison: the only changed member, or "" if not exactly one
// member has changed. It reports whether the hint must be stored, and whether it must be logged
// too.
func (h *Hints) compared(facet, member string, now time.Time) (save, log bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.facet(facet)
	if member == "" {
		f.rest(now)
		return false, false
	}
	if member != f.member {
		f.member, f.run = member, 0
	}
	f.run++
	f.interval = minHintInterval
	f.next = now.Add(f.interval)
	if f.run < minHintRun {
		return false, false
	}
	f.run, f.interval, f.deleted = minHintRun, maxHintInterval, false
	f.next = now.Add(f.interval)
	if slices.Contains(f.reported, member) || len(f.reported) == maxHintMembers {
		return true, false
	}
	f.reported = append(f.reported, member)
	return true, true
}

// recordUnchanged records that a check of the task's entity found no change. A nil receiver does nothing.
func (h *Hints) recordUnchanged(ctx context.Context, b *base, t *task) {
	if h == nil || !h.unchanged(t.request.Facet, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	if err := h.store.DeleteHint(ctx, t.request.Facet); err != nil {
		b.log.Debug("hint about a changing JSON member not deleted; the console still shows it", "facet", t.request.Facet, "err", err)
	}
}

// recordChanged compares changed content with the stored content, if a comparison is due. It ignores
// a failed comparison. It does not compare content that not every client may see, because every
// user of the console who can see a facet sees its hint.
func (h *Hints) recordChanged(ctx context.Context, db *database, t *task, content []byte) {
	b, facet := db.base, t.request.Facet
	isPublic := t.stored.Visibility == "" && b.source.Visibility(t.request.Entity.Key) == ""
	if h == nil || !isPublic || max(len(content), t.stored.Size) > maxHintBytes || !h.due(facet, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	found, err := db.GetAll(ctx, []schemas.Entity{t.request.Entity})
	if err != nil {
		return
	}
	stored := found[0]
	if stored.Version != t.stored.Version || !stored.HasContent() {
		return
	}
	before, err := stored.Decode(nil)
	if err != nil {
		return
	}
	member, _ := b.source.OnlyChangedMember(facet, before, content)
	save, log := h.compared(facet, member, time.Now())
	if log {
		b.log.Warn("only one JSON member of the facet changes at every check; add it to facets.NAME.ignore if it is not content", "facet", facet, "member", member)
	}
	if !save {
		return
	}
	if err := h.store.SaveHint(ctx, facet, member); err != nil {
		b.log.Debug("hint about a changing JSON member not saved; the console does not show it", "facet", facet, "err", err)
	}
}
