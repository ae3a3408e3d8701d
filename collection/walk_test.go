package collection

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func cursorAt(minutes int) string { return formatTime(began.Add(time.Duration(minutes) * time.Minute)) }

func pageOf(version int64, next string, minutes ...int) Page {
	p := Page{Version: version, Began: began, Next: next}
	for n, m := range minutes {
		p.Items = append(p.Items, Fetched{ID: fmt.Sprint(n), Cursor: cursorAt(m)})
	}
	return p
}

// after applies the pages to the state, one after the other, and returns the last state.
func after(t *testing.T, s State, r Rules, pages ...Page) State {
	t.Helper()
	for _, p := range pages {
		var err error
		if s, err = s.Begin(r, p.Began, false).After(r, p); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestCursor_AdvancesOnlyOverCompleteItems(t *testing.T) {
	for name, c := range map[string]struct {
		order     string
		pages     []Page
		cursor    string
		completes bool
	}{
		"none, midway":                {OrderNone, []Page{pageOf(1, "2", -90, -60)}, "", false},
		"none, at the end":            {OrderNone, []Page{pageOf(1, "2", -90, -60), pageOf(2, "", -70)}, cursorAt(-60), true},
		"desc, midway":                {OrderDesc, []Page{pageOf(1, "2", -60, -90)}, "", false},
		"desc, at the end":            {OrderDesc, []Page{pageOf(1, "2", -60, -90), pageOf(2, "", -95)}, cursorAt(-60), true},
		"asc, midway":                 {OrderAsc, []Page{pageOf(1, "2", -90, -60)}, cursorAt(-60), false},
		"future value":                {OrderNone, []Page{pageOf(1, "", -90, 60)}, cursorAt(0), true},
		"future value, asc, midway":   {OrderAsc, []Page{pageOf(1, "2", -90, 60)}, cursorAt(0), false},
		"no items":                    {OrderNone, []Page{pageOf(1, "")}, "", true},
		"items without the field":     {OrderNone, []Page{{Version: 1, Began: began, Items: []Fetched{{ID: "a"}}}}, "", true},
		"upstream's clock is behind":  {OrderNone, []Page{{Version: 1, Began: began, Date: began.Add(-time.Hour), Items: []Fetched{{ID: "a", Cursor: cursorAt(-10)}}}}, cursorAt(-60), true},
		"upstream's clock is ahead":   {OrderNone, []Page{{Version: 1, Began: began, Date: began.Add(time.Hour), Items: []Fetched{{ID: "a", Cursor: cursorAt(50)}}}}, cursorAt(50), true},
		"date of page 2 is not later": {OrderNone, []Page{pageOf(1, "2", -90), {Version: 2, Began: began.Add(time.Hour), Date: began.Add(time.Hour), Items: []Fetched{{ID: "b", Cursor: cursorAt(30)}}}}, cursorAt(0), true},
	} {
		s := after(t, State{}, Rules{HasCursor: true, Order: c.order}, c.pages...)
		if s.Cursor != c.cursor || s.CompleteAt.IsZero() == c.completes {
			t.Errorf("%s: got cursor %q and complete %t, want %q and %t", name, s.Cursor, !s.CompleteAt.IsZero(), c.cursor, c.completes)
		}
	}
}

func TestCursor_NeverMovesBackward(t *testing.T) {
	r := Rules{HasCursor: true, Order: OrderNone}
	s := after(t, State{}, r, pageOf(1, "", -10))
	if s = after(t, s, r, pageOf(2, "", -60)); s.Cursor != cursorAt(-10) {
		t.Errorf("cursor: got %s, want %s", s.Cursor, cursorAt(-10))
	}
}

func TestSince_IsBeforeTheCursor(t *testing.T) {
	r := Rules{HasCursor: true, Lookback: time.Hour}
	for cursor, want := range map[string]string{"2026-01-01T12:00:00.9Z": "2026-01-01T11:00:00Z", "42": "42"} {
		s := State{Version: 1, Cursor: cursor, CompleteAt: began}.Begin(r, began, false)
		if got := s.Since(r); got != want {
			t.Errorf("cursor %s: got since %s, want %s", cursor, got, want)
		}
	}
}

func TestBegin_ChoosesFullWalks(t *testing.T) {
	complete := State{Version: 5, ExtractVersion: 1, Cursor: cursorAt(-10), CompleteAt: began.Add(-time.Minute), FullAt: began.Add(-24 * time.Hour)}
	withWalk := complete
	withWalk.Walk = Walk{ID: 5, Page: 2, ExtractVersion: 1}
	r := Rules{HasCursor: true, ExtractVersion: 1}
	changed := func(change func(*Rules)) Rules {
		other := r
		change(&other)
		return other
	}
	for name, c := range map[string]struct {
		state    State
		rules    Rules
		notFound bool
		full     bool
		page     int
	}{
		"first walk":                             {State{}, r, false, true, 1},
		"next walk":                              {complete, r, false, false, 1},
		"open walk":                              {withWalk, r, false, false, 2},
		"open walk of a list that was not found": {withWalk, r, true, false, 1},
		"other settings":                         {complete, changed(func(r *Rules) { r.ExtractVersion = 2 }), false, true, 1},
		"other settings in an open walk":         {withWalk, changed(func(r *Rules) { r.ExtractVersion = 2 }), false, true, 1},
		"other visibility in a walk":             {withWalk, changed(func(r *Rules) { r.Visibility = "secret" }), false, true, 1},
		"full walk is due":                       {complete, changed(func(r *Rules) { r.FullEvery = 24 * time.Hour }), false, true, 1},
		"full walk is not due":                   {complete, changed(func(r *Rules) { r.FullEvery = 25 * time.Hour }), false, false, 1},
		"without cursor":                         {complete, changed(func(r *Rules) { r.HasCursor = false }), false, false, 1},
		"without cursor, deletes missing":        {complete, changed(func(r *Rules) { r.HasCursor, r.Deletes = false, DeletesFull }), false, true, 1},
	} {
		s := c.state.Begin(c.rules, began, c.notFound)
		if s.Walk.Full != c.full || s.Walk.Page != c.page {
			t.Errorf("%s: got full %t and page %d, want %t and %d", name, s.Walk.Full, s.Walk.Page, c.full, c.page)
		}
	}
}

func TestValidator_FirstPageOfNewestFirst(t *testing.T) {
	r := Rules{Order: OrderDesc, HasCursor: true, Conditional: true}
	first := pageOf(1, "2", -10)
	first.ETag = "one"
	s := after(t, State{}, r, first)
	if got := s.Validator(r); got != "" || s.ETag != "" {
		t.Errorf("validator of page 2: got %q and %q, want none", got, s.ETag)
	}
	s = after(t, s, r, pageOf(2, "", -20)).Begin(r, began, false)
	if got := s.Validator(r); got != "one" {
		t.Errorf("validator of page 1: got %q, want one", got)
	}
	s = after(t, s, r, Page{Version: 3, Began: began.Add(time.Hour), NotModified: true})
	if s.ETag != "one" || !s.CompleteAt.Equal(began.Add(time.Hour)) || s.Walk.Open() {
		t.Errorf("after an unchanged first page: got %+v, want a complete walk and the same validator", s)
	}
	for name, other := range map[string]Rules{"asc": {Order: OrderAsc, HasCursor: true, Conditional: true}, "not conditional": {Order: OrderDesc, HasCursor: true}} {
		if got := s.Begin(other, began, false).Validator(other); got != "" {
			t.Errorf("%s: got validator %q, want none", name, got)
		}
	}
}

// If the link of a page leads back to an earlier page, the walk must end, after at most four times the
// length of the cycle.
func TestAfter_FindsCycles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 2))
	for range 200 {
		lead, length := random.IntN(20), 1+random.IntN(30)
		s, r := State{}, Rules{}
		pages := 0
		for at := 0; ; pages++ {
			if at++; at >= lead+length {
				at = lead
			}
			var err error
			if s, err = s.Begin(r, began, false).After(r, pageOf(int64(pages+1), fmt.Sprint(at))); err != nil {
				break
			}
			if pages > 4*(lead+length)+4 {
				t.Fatalf("seed %d: a cycle of %d pages after %d pages was not found within %d pages", seed, length, lead, pages)
			}
		}
	}
	s := State{}
	for n := range 10_000 { // A list without a cycle must not be refused, however long it is.
		var err error
		if s, err = s.Begin(Rules{}, began, false).After(Rules{}, pageOf(int64(n+1), fmt.Sprint("p", n))); err != nil {
			t.Fatalf("page %d of a list without a cycle: %v", n, err)
		}
	}
}

func TestCompareCursors_OrdersAllPairs(t *testing.T) {
	ordered := []string{"", "-5", "0", "9", "10", "123456789012345678901234567890", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:01Z"}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := compareCursors(a, b), sign(i-j); got != want {
				t.Errorf("compare %q with %q: got %d, want %d", a, b, got, want)
			}
		}
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
