package app

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/status"
)

func TestHistory_SharesReadsOfThisProcess(t *testing.T) {
	f := newConsoleFixture(t, nil)
	f.write("a", 1, 10*time.Minute, "")
	f.send(http.MethodGet, "/v1/nexon/character/a")
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := shareCounts(stopped, f.parts); err != nil { // the context has ended, so shareCounts writes the counts once and returns
		t.Fatal(err)
	}
	all, err := newHistory(f.parts, newLimiterStates(f.parts)).Counts(t.Context(), builtInSource)
	if err != nil {
		t.Fatal(err)
	}
	var fresh []int64
	for _, c := range all {
		fresh = append(fresh, c.Reads["fresh"])
	}
	if !slices.Contains(fresh, 1) {
		t.Errorf("fresh reads by process: got %v, want one process with 1", fresh)
	}
}

func TestHistory_ReadsLimiterAndLanes(t *testing.T) {
	f := newConsoleFixture(t, nil)
	history := newHistory(f.parts, newLimiterStates(f.parts))
	v, err := history.Limiter(t.Context(), builtInSource)
	if err != nil || v.State != limiter.StateUnused {
		t.Errorf("limiter: got %s, %v, want unused", v.State, err)
	}
	if r := f.producer.EnqueueAndWait(t.Context(), producer.Request{Entity: testEntity("a"), Lane: schemas.High, Reason: schemas.CacheMiss}); r.Err != nil {
		t.Fatal(r.Err)
	}
	want := status.LaneBacklog{Records: 1, Known: true}
	servicetest.WaitFor(t, eventTimeout, "the backlog of HIGH", func() bool {
		high, low := history.Lanes(builtInSource)
		high.Delay = 0 // not compared: it is the time for which the record has waited, which differs in each run
		return high == want && low == status.LaneBacklog{Known: true}
	})
}
