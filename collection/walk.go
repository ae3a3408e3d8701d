package collection

import (
	"cmp"
	"math/big"
	"time"
)

// The orders of a list by the field of its cursor.
const (
	OrderNone = "none" // the order is unknown, or changes
	OrderAsc  = "asc"  // the item with the smallest value is first
	OrderDesc = "desc" // the item with the greatest value is first
)

// The ways in which a collection notices deleted items.
const (
	DeletesNone = "none" // deletions are not noticed
	DeletesFlag = "flag" // a member of an item says that the item is deleted
	DeletesFull = "full" // an item is deleted if full walks no longer find it
)

// Rules are the settings of a facet that determine its walks.
type Rules struct {
	Order string // one of the Order constants
	// HasCursor is true if the facet has a cursor. Lookback is the time by which a walk begins before
	// the cursor. It has no effect on cursors that are numbers.
	HasCursor bool
	Lookback  time.Duration
	Deletes   string // one of the Deletes constants
	// FullEvery is the maximum time between two full walks; 0 means no limit.
	FullEvery time.Duration
	// ShrinkGuard is the minimum number of items after a full walk, as a fraction of the number before.
	ShrinkGuard float64
	// Keep is how long an item is kept after its last change; 0 means no limit. If the cursor value of
	// an item is a time that is longer ago, the item is not stored. MaxItems is the maximum number of
	// items after a walk; 0 means no limit. If there are more, the items with the oldest changes are
	// deleted.
	Keep     time.Duration
	MaxItems int64
	// Conditional is true if the request of the first page contains the stored ETag.
	Conditional bool
	// ExtractVersion and Visibility are the values of a fetch with the current configuration.
	ExtractVersion int64
	Visibility     string
}

// Begin returns the state with its open walk, or with a new walk if no walk is open or the open walk
// cannot continue. The parameter `notFound` is true if the upstream has answered during the walk that
// the collection does not exist.
func (s State) Begin(r Rules, now time.Time, notFound bool) State {
	if s.Version != 0 && s.Visibility != r.Visibility {
		s = State{Version: s.Version, reset: true}
	}
	s.Visibility = r.Visibility
	if s.Walk.Open() && !notFound && s.Walk.ExtractVersion == r.ExtractVersion {
		return s
	}
	s.Walk = Walk{Page: 1, ExtractVersion: r.ExtractVersion}
	s.Walk.Full = s.Cursor == "" && r.HasCursor || s.CompleteAt.IsZero() || s.ExtractVersion != r.ExtractVersion ||
		r.FullEvery > 0 && now.Sub(s.FullAt) >= r.FullEvery || r.Deletes == DeletesFull && !r.HasCursor
	return s
}

// Since returns the cursor value from which the walk requests items; empty means that the walk
// requests all items.
func (s State) Since(r Rules) string {
	if s.Walk.Full || !r.HasCursor {
		return ""
	}
	return lookBack(s.Cursor, r.Lookback)
}

// Validator returns the ETag to send with the request of the next page; empty means none. Only the
// first page of a list with its newest items first has one, because only there an unchanged first page
// means an unchanged list.
func (s State) Validator(r Rules) string {
	if !r.Conditional || r.Order != OrderDesc || s.Walk.Full || s.Walk.Page != 1 {
		return ""
	}
	return s.ETag
}

// After returns the state after a page of the walk. It leaves Items, Changed and ChangedAt to
// Collections.Write. The only error is ErrRepeats.
func (s State) After(r Rules, p Page) (State, error) {
	w := &s.Walk
	s.Version = p.Version
	if w.Page == 1 {
		w.ID, w.Began, w.Date, w.ETag = p.Version, p.Began, p.Date, p.ETag
		if w.Date.IsZero() {
			w.Date = p.Began
		}
		if p.NotModified {
			w.ETag = s.ETag
		}
	}
	for _, i := range p.Items {
		if compareCursors(i.Cursor, w.Greatest) > 0 {
			w.Greatest = i.Cursor
		}
	}
	if r.Order == OrderAsc {
		s.advance()
	}
	if p.Next != "" && !s.reachedCursor(r, p) {
		if p.Next == w.Checkpoint || p.Next == w.Position {
			return s, ErrRepeats
		}
		// The checkpoint is set at pages 1, 2, 4, 8 and so on. So a cycle of pages is found whatever
		// its length is (Brent's algorithm).
		if w.Page&(w.Page-1) == 0 {
			w.Checkpoint = p.Next
		}
		w.Page, w.Position = w.Page+1, p.Next
		return s, nil
	}
	s.advance()
	s.CompleteAt, s.ExtractVersion, s.ETag = w.Began, w.ExtractVersion, w.ETag
	if w.Full {
		s.FullAt = w.Began
		s.FullWalk = 0
		if w.Page > 1 {
			s.FullWalk = w.ID
		}
	}
	s.Walk = Walk{}
	return s, nil
}

// reachedCursor reports whether the walk ends with this page, although the list has further pages. This
// is so if the list has its newest items first, and the page has an item that is older than the cursor.
func (s State) reachedCursor(r Rules, p Page) bool {
	since := s.Since(r)
	if since == "" || r.Order != OrderDesc {
		return false
	}
	for _, i := range p.Items {
		if i.Cursor != "" && compareCursors(i.Cursor, since) < 0 {
			return true
		}
	}
	return false
}

// advance sets the cursor to the greatest value that the walk has found. A cursor that is a time is not
// set beyond the start of the walk.
func (s *State) advance() {
	to := s.Walk.Greatest
	if _, ok := parseTime(to); ok {
		if date := formatTime(s.Walk.Date); compareCursors(to, date) > 0 {
			to = date
		}
	}
	if compareCursors(to, s.Cursor) > 0 {
		s.Cursor = to
	}
}

func formatTime(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

func parseTime(cursor string) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339Nano, cursor)
	return at, err == nil
}

// compareCursors compares two values of the field Fetched.Cursor. The empty value is the smallest. A
// number is smaller than a time: if an upstream that has sent numbers begins to send times, the cursor
// becomes a time.
func compareCursors(a, b string) int {
	if a == "" || b == "" {
		return cmp.Compare(a, b)
	}
	timeA, isTimeA := parseTime(a)
	timeB, isTimeB := parseTime(b)
	switch {
	case isTimeA && isTimeB:
		return timeA.Compare(timeB)
	case isTimeA:
		return 1
	case isTimeB:
		return -1
	}
	numberA, _ := new(big.Int).SetString(a, 10)
	numberB, _ := new(big.Int).SetString(b, 10)
	return numberA.Cmp(numberB)
}

// lookBack returns the cursor minus the lookback, in whole seconds. It returns a cursor that is a
// number unchanged.
func lookBack(cursor string, lookback time.Duration) string {
	if at, ok := parseTime(cursor); ok {
		return at.Add(-lookback).Truncate(time.Second).Format(time.RFC3339)
	}
	return cursor
}
