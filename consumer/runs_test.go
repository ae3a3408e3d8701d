package consumer_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
)

// runRig has workers of both lanes, an outbox relay and a poller of runs. A run fetches a list, and
// then the facet "detail" for each item of the list.
type runRig struct {
	*listRig
	all     *runs.Runs
	config  runs.Config
	details atomic.Int64 // number of calls of the facet "detail"
}

// stepEnqueuer enqueues the requests of steps as package app does.
type stepEnqueuer struct{ *producer.Producer }

func (e stepEnqueuer) RequestSteps(ctx context.Context, all []runs.Request) (outcomes []runs.Enqueued) {
	for _, r := range all {
		result := e.EnqueueAndWait(ctx, producer.Request{Entity: r.Entity, Lane: schemas.Low, Reason: schemas.RunStep, Run: r.Run, Page: r.Page, Floor: r.Floor})
		outcome := runs.NotEnqueued
		switch {
		case result.Published():
			outcome = runs.Published
		case result.Queued():
			outcome = runs.Covered
		}
		outcomes = append(outcomes, outcome)
	}
	return outcomes
}

func newRunRig(t *testing.T) *runRig {
	t.Helper()
	r := &runRig{listRig: newListRig(t, items.Collection{ID: "id"})}
	detail := source.DefaultFacet()
	detail.Documents = map[string]source.Document{"detail": {Path: "/details/{key}"}}
	r.listRig.config.Facets["detail"] = detail
	r.source = r.newSource(r.listRig.config)
	r.config = runs.Config{
		Steps:    map[string]runs.StepConfig{"character": {}, "detail": {Each: "character", Key: "{id}", Unless: []string{"gone"}}},
		Parallel: 4, Deadline: time.Hour,
	}
	r.list.answer = r.answerDetail
	r.all = runs.New(r.db.Store)
	poller := runs.NewPoller(r.source, map[string]runs.Config{"all": r.config}, r.db.Store, stepEnqueuer{r.producer}, r.rdb, r.log(), prometheus.NewRegistry())
	r.run(poller.Run)
	r.runs = poller
	return r
}

func (r *runRig) answerDetail(w http.ResponseWriter, req *http.Request, _ int) bool {
	if !strings.HasPrefix(req.URL.Path, "/details/") {
		return false
	}
	r.details.Add(1)
	if req.URL.Path == "/details/i03" {
		http.NotFound(w, req)
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"path":%q}`, req.URL.Path)
	return true
}

func (r *runRig) startRun() runs.Run {
	r.Helper()
	run, started, err := r.all.Start(r.Context(), runs.Order{Source: r.source, Name: "all", Config: r.config, Keys: runs.Keys{List: []string{"k"}}, TriggeredBy: "key:a"}, time.Now())
	if err != nil || !started {
		r.Fatalf("got started %t and %v, want a new run", started, err)
	}
	r.runs.(*runs.Poller).Notify()
	return run
}

func (r *runRig) get(id string) runs.Run {
	r.Helper()
	run, err := r.all.Get(r.Context(), id)
	if err != nil {
		r.Fatal(err)
	}
	return run
}

// untilEnd waits for the end of a run, and checks its state and its counters.
func (r *runRig) untilEnd(id string, state runs.State, want runs.Counts) {
	r.Helper()
	var run runs.Run
	r.until("the end of the run", func() bool { run = r.get(id); return run.Ended() })
	if run.State != state || run.Counts != want {
		r.Errorf("run: got %s %+v, want %s %+v", run.State, run.Counts, state, want)
	}
	if faults, err := r.all.Verify(r.Context(), id); err != nil || len(faults) > 0 {
		r.Errorf("verify: got %q, %v, want no fault", faults, err)
	}
}

func TestRun_FetchesPagesAndChildren(t *testing.T) {
	r := newRunRig(t)
	r.list.items[7].Gone = true
	r.start()
	run := r.startRun()
	r.untilEnd(run.ID, runs.Completed, runs.Counts{Total: 8, Done: 7, NotFound: 1})
	if got := r.details.Load(); got != 7 {
		t.Errorf("calls for details: got %d, want 7", got)
	}
	if got := len(r.list.take()) - 7; got != 3 {
		t.Errorf("calls for pages: got %d, want 3", got)
	}
	if got := r.produced(schemas.Low); got != 10 {
		t.Errorf("records in LOW: got %d, want one for each of 3 pages and 7 details", got)
	}
	consumed := r.client(kgo.ConsumeTopics(schemas.RunTopic("nexon")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	record := consumed.PollRecords(ctx, 1).Records()[0]
	event, err := schemas.DecodeRunEvent(record.Value)
	if err != nil || string(record.Key) != run.ID || event.State != "COMPLETED" || event.Steps.Done != 7 {
		t.Errorf("event: got key %s, %+v, %v; want the completed run", record.Key, event, err)
	}
}

func TestRun_CancelledPageIsNotStored(t *testing.T) {
	r := newRunRig(t)
	arrived, proceed := make(chan struct{}), make(chan struct{})
	r.list.set(func(u *listUpstream) {
		u.answer = func(_ http.ResponseWriter, _ *http.Request, n int) bool {
			if n == 2 {
				close(arrived)
				<-proceed
			}
			return false
		}
	})
	r.start()
	run := r.startRun()
	<-arrived
	if _, err := r.all.Cancel(t.Context(), run.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	close(proceed)
	r.untilCommitted(schemas.Low)
	r.untilEnd(run.ID, runs.Cancelled, runs.Counts{Total: 1, Cancelled: 1})
	if s := r.state(); s.Items != 3 || s.Walk.Page != 2 {
		t.Errorf("collection: got %d items and next page %d, want the 3 items of page 1, and page 2", s.Items, s.Walk.Page)
	}
	r.wantCalls("the cancelled run", r.list.take(), "1", "2")
}

// If a run is cancelled before a worker reads the record of its request, the worker must not call the
// upstream.
func TestRun_CancelledRequestMakesNoCall(t *testing.T) {
	r := newRunRig(t)
	run := r.startRun() // no worker has started yet
	r.until("the request", func() bool { return r.produced(schemas.Low) == 1 })
	if _, err := r.all.Cancel(t.Context(), run.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.untilCommitted(schemas.Low)
	r.wantCalls("the cancelled run", r.list.take())
	if lock := r.lock("k"); lock != "" {
		t.Errorf("lock of the entity: got %q, want none", lock)
	}
}

func TestRun_RetryContinuesWithTheFailedPage(t *testing.T) {
	r := newRunRig(t)
	r.config.Steps = map[string]runs.StepConfig{"character": {}}
	var broken atomic.Bool
	var calls []string // calls of the list with the key k; the confirming run also calls the list with the key good
	r.list.set(func(u *listUpstream) {
		u.answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
			if req.URL.Path == "/lists/k" {
				calls = append(calls, req.URL.Query().Get("page"))
			}
			if !broken.Load() || req.URL.Path != "/lists/k" || req.URL.Query().Get("page") != "2" {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`[{"name":"an item without an id"}]`))
			return true
		}
	})
	r.start()
	r.enqueue("good", schemas.High, schemas.UserRequest) // the known-good entity, with which the confirming run finds that only k has failed
	r.until("the walk of the good list", func() bool {
		s, err := r.collections.State(t.Context(), entity("good"))
		return err == nil && !s.CompleteAt.IsZero()
	})
	broken.Store(true)
	run := r.startRun()
	r.untilEnd(run.ID, runs.Failed, runs.Counts{Total: 1, Failed: 1})
	if s := r.state(); s.Items != 3 || s.Walk.Page != 2 {
		t.Errorf("collection: got %d items and next page %d, want the 3 items of page 1, and page 2", s.Items, s.Walk.Page)
	}
	broken.Store(false)
	r.list.set(func(*listUpstream) { calls = nil })
	if _, err := r.all.Retry(t.Context(), run.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.runs.(*runs.Poller).Notify()
	r.untilEnd(run.ID, runs.Completed, runs.Counts{Total: 1, Done: 1})
	r.list.set(func(*listUpstream) { r.wantCalls("the retry", calls, "2", "3") })
	r.wantList()
}

// A worker stops between two pages. After its restart the run must end with all items.
func TestRun_ContinuesAfterAStop(t *testing.T) {
	r := newRunRig(t)
	arrived, proceed := make(chan struct{}), make(chan struct{})
	r.list.set(func(u *listUpstream) {
		u.answer = func(w http.ResponseWriter, req *http.Request, n int) bool {
			if n == 2 {
				close(arrived)
				<-proceed
			}
			return r.answerDetail(w, req, n)
		}
	})
	stop := r.start()
	run := r.startRun()
	<-arrived
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	close(proceed)
	<-done
	r.start()
	r.untilEnd(run.ID, runs.Completed, runs.Counts{Total: 9, Done: 8, NotFound: 1})
	all, err := r.collections.Items(t.Context(), entity("k"), collection.Range{Limit: 100})
	if err != nil || len(all) != 8 {
		t.Errorf("items: got %d, %v, want 8", len(all), err)
	}
}
