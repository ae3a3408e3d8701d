package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

func TestFreshnessOf(t *testing.T) {
	now := time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)
	hour := Lifetimes{FreshFor: time.Hour, NotFoundFor: 10 * time.Minute}
	kept := Lifetimes{FreshFor: time.Hour, NotFoundFor: 10 * time.Minute, KeepFor: 24 * time.Hour}
	content := func(checked, fetched time.Duration) State {
		return State{Encoding: Zstd, CheckedAt: now.Add(-checked), FetchedAt: now.Add(-fetched)}
	}
	notFound := func(checked time.Duration) State { return State{NotFound: true, CheckedAt: now.Add(-checked)} }
	notFoundWithContent := content(time.Minute, time.Hour)
	notFoundWithContent.NotFound = true
	for name, c := range map[string]struct {
		state     State
		lifetimes Lifetimes
		freshness Freshness
		reason    schemas.Reason
	}{
		"nothing stored":               {State{}, hour, Updating, schemas.CacheMiss},
		"checked within FreshFor":      {content(time.Hour-1, 48*time.Hour), hour, Fresh, ""},
		"checked before FreshFor":      {content(time.Hour, time.Hour), hour, Stale, schemas.Stale},
		"fetched within KeepFor":       {content(time.Minute, 24*time.Hour-1), kept, Fresh, ""},
		"fetched before KeepFor":       {content(time.Minute, 24*time.Hour), kept, Updating, schemas.CacheMiss},
		"not found within NotFoundFor": {notFound(10*time.Minute - 1), hour, NotFound, ""},
		"not found before NotFoundFor": {notFound(10 * time.Minute), hour, NotFound, schemas.Stale},
		"not found with old content":   {notFoundWithContent, kept, NotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if f, reason := FreshnessOf(&c.state, c.lifetimes, now); f != c.freshness || reason != c.reason {
				t.Errorf("got %s and the reason %q, want %s and %q", f, reason, c.freshness, c.reason)
			}
		})
	}
}

func ExampleFreshness() {
	fmt.Println(Fresh, Stale, Updating, NotFound)
	// Output: FRESH STALE UPDATING NOT_FOUND
}
