package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// childServer is an upstream with lists, and with entities whose keys are numbers, such as the ids of the items of the lists.
type childServer struct {
	lists  *listServer
	status func(n int) int // of the response for the entity n
	calls  atomic.Int64    // number of calls for entities
}

// missingFiftieth is the status of an upstream that lacks each fiftieth entity.
func missingFiftieth(n int) int {
	if n%50 == 0 {
		return http.StatusNotFound
	}
	return http.StatusOK
}

func (s *childServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, isChild := strings.CutPrefix(r.URL.Path, "/details/")
	if !isChild {
		s.lists.ServeHTTP(w, r)
		return
	}
	s.calls.Add(1)
	n, _ := strconv.Atoi(id)
	if status := s.status(n); status != http.StatusOK {
		http.Error(w, http.StatusText(status), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"id":%q}`, id)
}

const runSource = `  detail:
    documents: {detail: {path: "/details/{key}"}}
    freshFor: 24h
runs:
  all:
    steps: {list: {}, detail: {each: list, key: "{id}"}}
    parallel: 64
    overlap: cancel-other
  details:
    steps: {detail: {}}
    parallel: 256
    tolerate: 0.1%
`

// TestRuns_EndOnceAfterKills starts runs that fetch lists and an entity for each of their items, and
// kills workers meanwhile. Each run must end once.
func TestRuns_EndOnceAfterKills(t *testing.T) {
	t.Parallel()
	keys, kills := harness.Keys("k", 10), 2
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %d lists", seed, len(keys))
	f := newSite(t)
	lists, _ := newListServer(t, keys, 6, seed)
	upstream := &childServer{lists: lists, status: missingFiftieth}
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	f.prepareSource(fmt.Sprintf(listSource, server.URL) + runSource)
	api := f.query()
	workers := []*harness.Process{f.worker(), f.worker()}
	c, err := client.New(api, client.Options{})
	f.check(err)
	pages, _ := lists.pages()
	items, missing := 0, 0
	for _, list := range lists.lists {
		items += len(list)
		for _, i := range list {
			if missingFiftieth(i.ID) != http.StatusOK {
				missing++
			}
		}
	}
	want := client.RunSteps{Total: len(keys) + items, Done: len(keys) + items - missing, NotFound: missing}
	started := time.Now()
	run, isNew, err := c.StartRun(t.Context(), f.Source, "all", client.RunKeys{Keys: keys}, "e2e")
	f.check(err)
	equal(t, "a new run", isNew, true)
	again, isNew, err := c.StartRun(t.Context(), f.Source, "all", client.RunKeys{Keys: keys}, "e2e")
	f.check(err)
	equal(t, "the repeated start: a new run", isNew, false)
	equal(t, "the repeated start: the run", again.ID, run.ID)
	var killing sync.WaitGroup
	killing.Go(func() {
		for n := range kills {
			f.until(timeout, "progress before a kill", func() bool {
				return f.one("SELECT done + not_found FROM runs WHERE id = $1", run.ID) > int64(n+1)*int64(want.Total)/int64(kills+2)
			})
			f.replaceWorker(workers, n)
		}
	})
	ended, err := c.WaitRun(t.Context(), run.ID, nil)
	f.check(err)
	killing.Wait()
	took := time.Since(started)
	equal(t, "state", ended.State, client.RunCompleted)
	equal(t, "steps", ended.Steps, want)
	_, pageCalls := lists.pages()
	t.Logf("first run: %d steps, %.1f s", want.Total, took.Seconds())
	f.compareCalls("first run", pageCalls+int(upstream.calls.Load()), pages+items, kills)
	f.compareItems(c, lists)

	// After its cancellation, a run must request nothing more.
	second, _, err := c.StartRun(t.Context(), f.Source, "all", client.RunKeys{Keys: keys}, "")
	f.check(err)
	third, _, err := c.StartRun(t.Context(), f.Source, "all", client.RunKeys{Keys: keys}, "") // this start cancels the second run, because the setting overlap is cancel-other
	f.check(err)
	cancelled, err := c.GetRun(t.Context(), second.ID)
	f.check(err)
	equal(t, "state of the second run", cancelled.State, client.RunCancelled)
	ended, err = c.WaitRun(t.Context(), third.ID, nil)
	f.check(err)
	equal(t, "state of the third run", ended.State, client.RunCompleted)
	equal(t, "steps of the third run", ended.Steps, want)
	t.Log(strings.TrimSpace(f.must("runs", "verify", "--addr", api)))

	f.compareRunEnds(map[string]string{run.ID: "COMPLETED", second.ID: "CANCELLED", third.ID: "COMPLETED"})
	equal(t, "dead letters", f.deadLetters(), 0)
}

// TestRuns_AlmostAllKeysAreMissing runs over 10,000 keys, of which the upstream has 7 and rejects 3. A missing entity is no
// failure, so the run tolerates the failures that it has.
func TestRuns_AlmostAllKeysAreMissing(t *testing.T) {
	t.Parallel()
	const keys, found, failed = 10_000, 7, 3
	f := newSite(t)
	upstream := &childServer{status: func(n int) int {
		switch {
		case n%1000 != 0:
			return http.StatusNotFound
		case n/1000 < failed:
			return http.StatusUnprocessableEntity
		default:
			return http.StatusOK
		}
	}}
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	f.prepareSource(fmt.Sprintf(listSource, server.URL) + runSource)
	api := f.query()
	f.worker()
	c, err := client.New(api, client.Options{})
	f.check(err)
	all := make([]string, keys)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	started := time.Now()
	run, _, err := c.StartRun(t.Context(), f.Source, "details", client.RunKeys{Keys: all}, "")
	f.check(err)
	ended, err := c.WaitRun(t.Context(), run.ID, nil)
	f.check(err)
	t.Logf("%d steps, %d calls, %.1f s", keys, upstream.calls.Load(), time.Since(started).Seconds())
	equal(t, "state", ended.State, client.RunCompleted)
	equal(t, "steps", ended.Steps, client.RunSteps{Total: keys, Done: found, NotFound: keys - found - failed, Failed: failed})
	equal(t, "dead letters", f.deadLetters(), failed)
}

// compareRunEnds fails the test unless each run has one event, of its first attempt and with the given
// state.
func (f *fleet) compareRunEnds(states map[string]string) {
	f.Helper()
	ends := f.runEnds(len(states))
	for id, want := range states {
		if got := ends[id]; len(got) != 1 || got[0].State != want || got[0].Attempt != 1 {
			f.Errorf("events of run %s: got %+v, want one with %s", id, got, want)
		}
	}
}

// runEnds reads the topic of runs until it has found n different events of ends of runs. Each event is
// published at least once, so equal events are counted once.
func (f *fleet) runEnds(n int) map[string][]schemas.RunEvent {
	f.Helper()
	consumer, err := f.ConnectKafka(kgo.ConsumeTopics(schemas.RunTopic(f.Source)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	f.check(err)
	defer consumer.Close()
	ends, seen := map[string][]schemas.RunEvent{}, map[string]bool{}
	for len(seen) < n {
		ctx, cancel := context.WithTimeout(f.Context(), timeout)
		fetches := consumer.PollFetches(ctx)
		cancel()
		if fetches.Err() != nil {
			f.Fatalf("events of the ends of runs: got %d of %d (%v): %+v", len(seen), n, fetches.Err(), ends)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			e, err := schemas.DecodeRunEvent(r.Value)
			f.check(err)
			equal(f.TB, "key of an event", string(r.Key), e.ID)
			if !seen[string(r.Value)] {
				seen[string(r.Value)] = true
				ends[e.ID] = append(ends[e.ID], e)
			}
		})
	}
	return ends
}
