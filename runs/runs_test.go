package runs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func TestRun_EndsWithItsLastStep(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		run := r.start("octocat")
		r.wantRequests("repos/octocat", "user/octocat")
		r.fetched(run, "user", "octocat", store.Content)
		r.page(run, "repos", "octocat", "2", repo(1, "octocat/a"), `{"full_name":"octocat/fork","id":2,"fork":true}`)
		r.work()
		r.wantRequests("repos/octocat page")
		r.wantCounts(run.ID, Running, Counts{Open: 1, Done: 1})
		r.page(run, "repos", "octocat", "", repo(3, "octocat/b"))
		r.work()
		r.wantRequests("issues/octocat/a", "issues/octocat/b")
		r.wantCounts(run.ID, Running, Counts{Open: 2, Done: 2})
		r.page(run, "issues", "octocat/a", "")
		r.work()
		r.wantEnds(run)
		r.fetched(run, "issues", "octocat/b", store.KindNotFound)
		r.work()
		r.wantCounts(run.ID, Completed, Counts{Done: 3, NotFound: 1})
		r.wantEnds(run, "COMPLETED 1")
		if got := r.count("SELECT count(*) FROM outbox WHERE run = ''"); got > 0 {
			t.Errorf("other outbox events: got %d, want 0: the poller requests the next page", got)
		}
	})
}

// In the original design (github-collection-v3.md, defect a), a job SUCCEEDED before the job of its
// next page exists. If another job ends between the two, the run completes too early. A crash between
// the two loses all further pages.
func TestStep_IsOpenBetweenTwoPages(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		run := r.start("octocat")
		r.page(run, "repos", "octocat", "2", repo(1, "octocat/a"))
		r.fetched(run, "user", "octocat", store.Content) // another step ends before a poller has requested the second page
		r.wantCounts(run.ID, Running, Counts{Open: 2})
		if _, err := New(r).End(r.Context(), run.ID, []StepEnd{{Number: 2, State: StepDone}}, r.now); err != nil {
			r.Fatal(err)
		}
		r.wantCounts(run.ID, Running, Counts{Open: 1, Done: 1})
		r.take()
		r.work() // work creates a new poller, like another process
		r.wantRequests("repos/octocat page")
	})
}

// In the original design (github-collection-v3.md, defects c, g and h), a lost request is never
// repeated: a record is acknowledged before its next work is dispatched, records are claimed only when
// a worker starts, and the trimming of the stream deletes pending records. Here each lost request is
// repeated after the lease.
func TestStep_LostRequestIsRepeatedAfterTheLease(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		run := r.start("octocat")
		r.wantRequests("repos/octocat", "user/octocat")
		r.pass(lease - time.Second)
		r.work()
		r.wantRequests()
		r.pass(2 * time.Second)
		r.work()
		r.wantRequests("repos/octocat", "user/octocat")
		r.pass(lease + time.Second) // each repeated request has a longer lease
		r.work()
		r.wantRequests()
		r.pass(lease)
		r.work()
		r.wantRequests("repos/octocat", "user/octocat")
		r.wantCounts(run.ID, Running, Counts{Open: 2})
	})
}

// A worker can be killed after it has stored the result of a fetch and before it makes the step due.
// The step must end nevertheless.
func TestStep_EndsWithoutTheWorkersNotification(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		run := r.start("octocat")
		r.take()
		r.fetched(Run{ID: "another"}, "user", "octocat", store.Content)
		r.fetched(Run{ID: "another"}, "repos", "octocat", store.KindNotFound)
		r.work()
		r.wantCounts(run.ID, Running, Counts{Open: 2})
		r.pass(lease + time.Second)
		r.work()
		r.wantRequests()
		r.wantCounts(run.ID, Completed, Counts{Done: 1, NotFound: 1})
	})
}

func TestStep_UncoveredRequestIsRepeatedSoon(t *testing.T) {
	for _, outcome := range []Enqueued{NotEnqueued, Covered} {
		r := newRig(t, openSQLite(t))
		r.outcome = outcome
		r.start("octocat")
		r.take()
		r.pass(coveredRecheck)
		r.work()
		r.wantRequests("repos/octocat", "user/octocat")
	}
}

func TestStep_OldDataDoesNotEndIt(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.fetched(Run{ID: "before"}, "user", "octocat", store.Content)
		r.fetched(Run{ID: "before"}, "repos", "octocat", store.KindNotFound)
		r.fail(Run{ID: "before"}, "user", "hubot", store.Failed, time.Hour)
		r.pass(time.Minute)
		run := r.start("octocat", "hubot")
		r.wantRequests("repos/hubot", "repos/octocat", "user/hubot", "user/octocat")
		r.wantCounts(run.ID, Running, Counts{Open: 4})
	})
}

// In the original design (github-collection-v3.md, defect j), a run is COMPLETED even if all its jobs
// have failed, and no run ever becomes FAILED.
func TestRun_FailsAboveItsTolerance(t *testing.T) {
	for tolerate, want := range map[Percent]State{0: Failed, 0.1: Failed, 0.5: Completed, 1: Completed} {
		r := newRig(t, openSQLite(t))
		r.config.Tolerate = tolerate
		run := r.start("octocat")
		r.fetched(run, "user", "octocat", store.Content)
		r.fail(run, "repos", "octocat", store.Failed, time.Hour)
		r.work()
		r.wantCounts(run.ID, want, Counts{Done: 1, Failed: 1})
		r.wantEnds(run, string(want)+" 1")
	}
	r := newRig(t, openSQLite(t))
	r.config.Tolerate = 1
	run := r.start("octocat")
	r.fail(run, "user", "octocat", store.Failed, time.Hour)
	r.fail(run, "repos", "octocat", store.Suspended, 0)
	r.work()
	r.wantCounts(run.ID, Failed, Counts{Failed: 2})
	events := r.events(run)
	if len(events) != 1 || len(events[0].Failures) != 2 || events[0].Failures[0].Error != "PARSE_ERROR: no JSON" {
		t.Errorf("event: got %+v, want one with two failures", events)
	}
}

func TestStep_WaitsForItsScheduledRetry(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		run := r.start("octocat")
		r.take()
		r.fetched(run, "repos", "octocat", store.KindNotFound)
		r.fail(run, "user", "octocat", store.Retrying, time.Minute)
		r.work()
		r.wantRequests()
		r.pass(time.Minute)
		r.fetched(Run{ID: "retry"}, "user", "octocat", store.Content) // the request of a retry contains no run id
		r.pass(retryRecheck)
		r.work()
		r.wantRequests()
		r.wantCounts(run.ID, Completed, Counts{Done: 1, NotFound: 1})
	})
}

func TestRun_RequestsAtMostParallelSteps(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.config.Steps, r.config.Parallel = map[string]StepConfig{"user": {}}, 3
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprintf("u%d", i))
		}
		run := r.start(keys...)
		r.wantRequests("user/u0", "user/u1", "user/u2")
		for i := range 10 {
			r.fetched(run, "user", fmt.Sprintf("u%d", i), store.Content)
			r.work()
			if got := r.get(run.ID); got.started > 3 {
				t.Fatalf("requested steps: got %d, want at most 3", got.started)
			}
		}
		r.wantCounts(run.ID, Completed, Counts{Done: 10})
	})
}

func TestCancel_StoresNoFurtherPage(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		run := r.start("octocat")
		r.page(run, "repos", "octocat", "2", repo(1, "octocat/a"))
		r.work()
		r.take()
		if _, err := New(r).Cancel(r.Context(), run.ID, r.now); err != nil {
			t.Fatal(err)
		}
		if r.page(run, "repos", "octocat", "", repo(2, "octocat/b")) {
			t.Error("a page of the cancelled run is stored, want it rejected")
		}
		r.pass(time.Hour)
		r.work()
		r.wantRequests()
		r.wantCounts(run.ID, Cancelled, Counts{Cancelled: 2})
		r.wantEnds(run, "CANCELLED 1")
		if _, err := New(r).Cancel(r.Context(), run.ID, r.now); !errors.Is(err, ErrEnded) {
			t.Errorf("second cancel: got %v, want %v", err, ErrEnded)
		}
	})
}

func TestRetry_OpensOnlyFailedSteps(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		run := r.start("octocat")
		r.fetched(run, "user", "octocat", store.Content)
		r.page(run, "repos", "octocat", "2", repo(1, "octocat/a"))
		r.work()
		r.take()
		if _, err := New(r).Retry(r.Context(), run.ID, r.now); !errors.Is(err, ErrNoFailedStep) {
			t.Errorf("retry of an active run: got %v, want %v", err, ErrNoFailedStep)
		}
		r.fail(run, "repos", "octocat", store.Failed, time.Hour)
		r.work()
		r.wantCounts(run.ID, Failed, Counts{Done: 1, Failed: 1})
		r.pass(time.Minute)
		again, err := New(r).Retry(r.Context(), run.ID, r.now)
		if err != nil || again.Attempt != 2 {
			t.Fatalf("retry: got attempt %d, %v; want 2", again.Attempt, err)
		}
		r.work()
		r.wantRequests("repos/octocat page") // the walk continues with the page that failed
		r.page(run, "repos", "octocat", "", repo(2, "octocat/b"))
		r.work()
		r.wantRequests("issues/octocat/a", "issues/octocat/b")
		r.page(run, "issues", "octocat/a", "")
		r.page(run, "issues", "octocat/b", "")
		r.work()
		r.wantCounts(run.ID, Completed, Counts{Done: 4})
		r.wantEnds(run, "FAILED 1", "COMPLETED 2")
	})
}

func TestDeadline_FailsOpenSteps(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.config.Deadline = time.Hour
		run := r.start("octocat")
		r.fetched(run, "user", "octocat", store.Content)
		r.pass(time.Hour)
		r.work()
		r.wantCounts(run.ID, Failed, Counts{Done: 0, Failed: 2})
		if got := r.get(run.ID).Error; !strings.Contains(got, "deadline of 1h0m0s") {
			t.Errorf("error: got %q, want the deadline", got)
		}
		if again, err := New(r).Retry(r.Context(), run.ID, r.now); err != nil || again.Counts.Open != 2 {
			t.Errorf("retry: got %d open steps, %v; want 2", again.Counts.Open, err)
		}
	})
}

func TestFan_BadItemsFailTheirSteps(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.config.Tolerate = 0.9
		run := r.start("octocat")
		r.fetched(run, "user", "octocat", store.Content)
		r.page(run, "repos", "octocat", "", repo(1, "octocat/a"), repo(2, "octocat/a"), `{"id":3}`, repo(4, "no-slash"), `{"full_name":"a/b\u0000c","id":5}`)
		r.work()
		r.page(run, "issues", "octocat/a", "")
		r.work()
		r.wantCounts(run.ID, Completed, Counts{Done: 3, Failed: 3})
		steps, err := New(r).Steps(r.Context(), run.ID, StepFailed, 0, 10)
		if err != nil || len(steps) != 3 || steps[0].Key != "3" || !strings.Contains(steps[0].Error, `item 3 of repos: the item has no text or number at the path "full_name"`) {
			t.Errorf("failed steps: got %+v, %v; want three with their items", steps, err)
		}
	})
}

// The second run must also add steps for the items that have not changed, although the pages of its
// walk contain only changed items.
func TestFan_ChildrenAreAllStoredItems(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		const n = 2*fanItems + 7
		r.config.Steps = map[string]StepConfig{"repos": {}, "issues": {Each: "repos", Key: "{full_name}"}}
		run := r.start("octocat")
		var contents []string
		for i := range n {
			contents = append(contents, repo(i, fmt.Sprintf("octocat/r%04d", i)))
		}
		r.page(run, "repos", "octocat", "2", contents[:n/2]...)
		r.work()
		r.page(run, "repos", "octocat", "", contents[n/2:]...)
		r.work()
		r.wantCounts(run.ID, Running, Counts{Open: n, Done: 1})
		if _, err := New(r).Cancel(r.Context(), run.ID, r.now); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		second := r.start("octocat")
		r.page(second, "repos", "octocat", "")
		r.work()
		r.wantCounts(second.ID, Running, Counts{Open: n, Done: 1})
	})
}

func TestDefinition_ChangeDoesNotAffectAStartedRun(t *testing.T) {
	r := newRig(t, openSQLite(t))
	run := r.start("octocat")
	r.config.Steps = map[string]StepConfig{"user": {}}
	r.config.Parallel = 1
	r.fetched(run, "user", "octocat", store.Content)
	r.page(run, "repos", "octocat", "", repo(1, "octocat/a"), repo(2, "octocat/b"))
	r.work()
	r.wantCounts(run.ID, Running, Counts{Open: 2, Done: 2})
}
