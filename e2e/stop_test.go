package e2e

import (
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// callsInFlight is the number of calls in flight when the worker receives SIGTERM.
const callsInFlight = 40

// slowWork starts a worker, a query service, and an upstream that takes five seconds for each
// response. It returns when callsInFlight calls are in flight.
func slowWork(t *testing.T) (f *fleet, w *harness.Process, api string) {
	t.Helper()
	f = newFleet(t, "--latency", "5s")
	w, api = f.worker(), f.query()
	f.read(api, harness.Keys("k", callsInFlight), callsInFlight)
	f.until(timeout, "the calls", func() bool { return f.stats().Arrivals == callsInFlight })
	return f, w, api
}

func TestWorker_FinishesItsCallsOnSIGTERM(t *testing.T) {
	t.Parallel()
	f, w, api := slowWork(t)
	took, code := f.terminate(w, false)
	t.Logf("ended after %v", took.Round(10*time.Millisecond))
	equal(t, "exit code", code, 0)
	equal(t, "snapshots", f.one(storedPayloads), callsInFlight)
	equal(t, "records that are not committed", f.lag(), 0)
	group := schemas.Group(f.Source, schemas.High)
	groups, err := f.admin.DescribeGroups(t.Context(), group)
	f.check(err)
	equal(t, "members of the group", len(groups[group].Members), 0)

	f.worker()
	f.read(api, []string{"another"}, 1)
	f.untilStored(timeout, callsInFlight+1)
	equal(t, "calls", f.stats().Arrivals, callsInFlight+1)
}

func TestWorker_ExitsAtOnceOnSecondSIGTERM(t *testing.T) {
	t.Parallel()
	f, w, _ := slowWork(t)
	took, code := f.terminate(w, true)
	t.Logf("ended after %v", took.Round(10*time.Millisecond))
	if code == 0 {
		t.Error("exit code: got 0, want another, because calls are abandoned")
	}
	if got := f.one(storedPayloads); got == callsInFlight {
		t.Errorf("snapshots: got %d, want fewer, because the worker must not wait for its calls", got)
	}
	f.worker()
	f.until(time.Minute, "all snapshots by another worker", func() bool {
		return f.one(storedPayloads) == callsInFlight && f.lag() == 0
	})
	atMost(t, "calls, of which each was in flight once", f.stats().Arrivals, 2*callsInFlight)
}
