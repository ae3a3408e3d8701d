package e2e

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// obeyed is the maximum time until every worker applies a change of settings. On a machine that
// also runs other load, slack is added to this time.
const (
	obeyed = 2 * time.Second
	slack  = 5 * time.Second
)

// limiterView contains some fields of the output of `freshet limiter -o jsonl`.
type limiterView struct {
	State     string
	Revision  int64
	Processes []json.RawMessage
}

func TestEmergencyStop_HoldsEveryWorkerAndLosesNothing(t *testing.T) {
	f := newFleet(t, "--latency", "30ms-300ms")
	f.worker()
	f.worker()
	api := f.query()
	order := func(args ...string) { t.Helper(); f.must(append(args, "--source", f.Source, "--addr", api)...) }
	order("settings", "set", "second.target=150") // at 150 calls a second the workers still have requests to process when the test stops the source
	view := func() (v limiterView) {
		t.Helper()
		f.check(json.Unmarshal([]byte(f.must("limiter", "--source", f.Source, "--addr", api, "-o", "jsonl")), &v))
		return v
	}
	f.until(obeyed+slack, "the lower target", func() bool { return view().Revision == 1 })

	const n = 500
	keys := harness.Keys("s", n)
	first := f.read(api, keys, 50)
	equal(t, "first answers that are UPDATING or FRESH", first["UPDATING"]+first["FRESH"], n)
	f.until(timeout, "the first calls", func() bool { return f.stats().Arrivals >= 50 })
	order("stop", "--yes")
	<-time.After(obeyed)
	before := f.stats().Arrivals
	v := view()
	equal(t, "state after the stop", v.State, "stopped")
	equal(t, "processes that report", len(v.Processes), 2)
	atMost(t, "calls before the stop was obeyed", before, n-1)
	<-time.After(time.Second)
	equal(t, "calls later than two seconds after the stop", f.stats().Arrivals-before, 0)

	order("settings", "set", "second.target=")
	order("resume")
	f.untilStored(timeout, n)
	equal(t, "answers that are FRESH afterwards", f.read(api, keys, 50)["FRESH"], n)
	f.judgeContract(f.stats(), n)
}
