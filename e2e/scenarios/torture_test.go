package main

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

type called struct {
	at     time.Time
	key    string
	status int
	fault  simulator.Kind
}

func arrivals(all []called) (calls []harness.Arrival) {
	for _, c := range all {
		calls = append(calls, harness.Arrival{At: c.at, Key: c.key, Status: c.status, Fault: c.fault})
	}
	return calls
}

func faultsOf(strikes []step) (all []fault) {
	for _, s := range strikes {
		all = append(all, s.faults...)
	}
	return all
}

func TestTorturePlan_DependsOnItsSeedOnly(t *testing.T) {
	const n = 200
	long := plan(7, n)
	if !reflect.DeepEqual(long, plan(7, n)) {
		t.Error("the same seed has another plan")
	}
	if reflect.DeepEqual(long, plan(8, n)) {
		t.Error("another seed has the same plan")
	}
	all := faultsOf(long)
	if short := faultsOf(plan(7, 12)); len(short) != 12 || !reflect.DeepEqual(short, all[:12]) {
		t.Errorf("a short plan is not the beginning of a long one: %v", short)
	}
	if len(all) != n {
		t.Errorf("%d faults of %d", len(all), n)
	}
	for _, of := range faultKinds {
		times := 0
		for _, h := range all {
			if reflect.DeepEqual(h.faultKind, of) {
				times++
				if h.length < of.min.Truncate(10*time.Millisecond) || h.length > of.max || !slices.Contains(of.victims, h.victim) {
					t.Errorf("%v", h)
				}
			}
		}
		if least := n / len(faultKinds); times < least {
			t.Errorf("%s comes %d times of %d", of.name, times, n)
		}
	}
	twice := 0
	for _, s := range long {
		if len(s.faults) == 2 {
			twice++
			if s.faults[0].component == s.faults[1].component {
				t.Errorf("%v at once", s.faults)
			}
		}
	}
	if twice == 0 {
		t.Error("never two at once")
	}
}

// What a run that is well never shows: that the judge would have seen it otherwise.
func TestTortureJudge_SeesLostRequests(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	record := func(key string, version int64, when time.Time) requestRecord {
		return requestRecord{recordID: recordID{"high", 1, version}, UpdateRequest: schemas.UpdateRequest{
			Entity: schemas.Entity{Key: key}, Version: version, RequestedAt: when, Reason: schemas.Stale,
		}}
	}
	e := &ledger{
		stored:       map[string]storedState{"k": {version: 10, checked: at(10).UnixMicro()}},
		failed:       map[string]failure{"held": {"FAILED", 10, at(10).UnixMicro(), at(60).UnixMicro(), 1}},
		deadLettered: map[recordID]bool{{"high", 1, 99}: true},
		lastCall:     map[string]time.Time{"held": at(20)},
	}
	garbled := requestRecord{recordID: recordID{"high", 1, 99}, garbled: true}
	other := requestRecord{recordID: recordID{"high", 1, 98}, garbled: true}
	for name, c := range map[string]struct {
		of   requestRecord
		want bool
	}{
		"stored by a later fetch":        {record("k", 9, at(1)), true},
		"stored by an earlier one":       {record("k", 11, at(1)), false},
		"without a number, checked":      {record("k", 0, at(9)), true},
		"without a number, not checked":  {record("k", 0, at(11)), false},
		"failed":                         {record("held", 9, at(1)), true},
		"held, and called for after it":  {record("held", 11, at(15)), true},
		"held, and not called for":       {record("held", 11, at(25)), false},
		"of nobody":                      {record("nobody", 1, at(1)), false},
		"no request, with its letter":    {garbled, true},
		"no request, without its letter": {other, false},
	} {
		if got := e.settled(c.of); got != c.want {
			t.Errorf("%s: ended is %t", name, got)
		}
	}

	never := func(string, time.Time) (bool, bool) { return false, false }
	for name, promised := range map[string]int{"kept": 9, "broken": 11} {
		var judged table
		l := &tortureLoad{refreshes: []promise{{"k", "query-1", at(promised)}}, queuedReads: map[string]queuedRead{"k": {promise{"k", "query-1", at(9)}, at(1).UnixMicro()}}}
		judged.judgeNothingLost(e, []requestRecord{record("k", 9, at(1))}, l, never)
		if missed := name == "broken"; judged.missed != missed {
			t.Errorf("a promise that is %s: missed is %t", name, judged.missed)
		}
	}
	var lost table
	lost.judgeNothingLost(e, []requestRecord{record("k", 11, at(1))}, &tortureLoad{}, never)
	if !lost.missed {
		t.Error("a lost record is not seen")
	}

	var broken, twice table
	broken.judgeTortureContract(simulator.Stats{Arrivals: 1, MaxInSlidingSecond: tortureLimit + 1})
	calls := arrivals([]called{
		{at(2), "k", 200, ""}, // needed
		{at(3), "k", 200, ""},
		{at(5), "k", 500, simulator.InternalError},
		{at(6), "k", 200, ""}, // needed, by two
		{at(7), "k", 0, ""},   // of a process that was killed
		{at(8), "other", 400, ""},
	})
	needs := []requestRecord{record("k", 1, at(1)), record("k", 2, at(4)), record("k", 3, at(4))}
	hurts := func(part string) []injectedFault {
		return []injectedFault{{fault{faultKind: faultKind{component: part}, victim: allProcesses}, at(0), at(1)}}
	}
	if n := twice.judgeDuplicates(calls, needs, hurts("redis")); n != 2 || twice.missed || !broken.missed {
		t.Errorf("%d calls that nobody needed; missed is %t, and of too many in a second %t", n, twice.missed, broken.missed)
	}
	var many, without table
	if many.judgeDuplicates(slices.Repeat(calls, maxRepeatsPerFault), needs, hurts("redis")); !many.missed {
		t.Error("too many calls are not seen")
	}
	if without.judgeDuplicates(calls, needs, hurts("upstream")); !without.missed {
		t.Error("calls that no fault explains are not seen")
	}
}

// A failed call explains one call of a known-good entity, and for a short time.
func TestTortureJudge_AllowsOneConfirmingCallPerFailure(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(ms)) }
	for name, test := range map[string]struct {
		later []int // ms after the failure
		want  int
	}{
		"one soon after": {[]int{500}, 0}, "two soon after": {[]int{500, 600}, 1}, "one later": {[]int{2500}, 1},
	} {
		calls := []called{{at(0), "refused1", 400, simulator.BadParameter}}
		for _, ms := range test.later {
			calls = append(calls, called{at(ms), "good", 200, ""})
		}
		var judged table
		if got := judged.judgeDuplicates(arrivals(calls), nil, nil); got != test.want {
			t.Errorf("%s: got %d calls that nobody needed, want %d", name, got, test.want)
		}
	}
}

func TestTortureJudge_AllowsMoreRepeatsWithoutTheDatabase(t *testing.T) {
	began := time.Now()
	of := func(part, victim string, from, to int) injectedFault {
		return injectedFault{fault{faultKind: faultKind{component: part}, victim: victim}, began.Add(time.Duration(from) * time.Second), began.Add(time.Duration(to) * time.Second)}
	}
	done := []injectedFault{of("database", allProcesses, 0, 3), of("process", "worker-1", 2, 3), of("process", "query-1", 2, 3), of("upstream", allProcesses, 0, 1)}
	if faults, most := maxRepeats(done); faults != 2 || most != 2*maxRepeatsPerFault+2*tortureLimit {
		t.Errorf("%d of %d faults", most, faults)
	}
}

// What a reader was told is kept by what was stored after what he got, and by nothing
// before it, however soon before.
func TestTortureJudge_SeesAcceptedReadsWithoutARefresh(t *testing.T) {
	began := time.Now()
	checked, read := began.Add(10*time.Second), began.Add(40*time.Second)
	e := &ledger{
		stored: map[string]storedState{"k": {version: 10, checked: checked.UnixMicro()}},
		failed: map[string]failure{"failed": {state: "FAILED", updated: read.Add(time.Second).UnixMicro()}},
	}
	for name, c := range map[string]struct {
		key   string
		got   int64
		doubt bool
		long  bool
		of    int
		want  bool // missed
	}{
		"fetched since":                 {"k", checked.Add(-time.Minute).UnixMicro(), false, false, 1, false},
		"nothing since":                 {"k", checked.UnixMicro(), false, false, 1, true},
		"nothing stored":                {"other", 0, false, false, 1, true},
		"failed since":                  {"failed", 0, false, false, 1, false},
		"all lost with their process":   {"k", checked.UnixMicro(), true, false, 500, true},
		"all lost in a long time alone": {"k", checked.UnixMicro(), true, true, 500, false},
	} {
		l := &tortureLoad{queuedReads: map[string]queuedRead{}}
		for i := range c.of {
			l.queuedReads[fmt.Sprint(i)] = queuedRead{promise{c.key, "query-1", read}, c.got}
		}
		var judged table
		judged.judgeQueuedReads(e, l, func(string, time.Time) (bool, bool) { return c.doubt, c.long })
		if judged.missed != c.want {
			t.Errorf("%s: missed is %t", name, judged.missed)
		}
	}
}

func TestTortureJudge_SeesAFailureWithoutADeadLetter(t *testing.T) {
	e := &ledger{
		failed:          map[string]failure{"one": {state: "FAILED", times: 1}, "two": {state: "SUSPENDED", times: 3}, "passes": {state: "RETRYING"}},
		deadLetterCount: map[string]int{"one": 1, "two": 2},
	}
	refused := requestRecord{UpdateRequest: schemas.UpdateRequest{Entity: schemas.Entity{Key: "refused1"}}}
	if of, wrong := e.missingDeadLetters([]requestRecord{refused, refused}); of != 2 || len(wrong) != 2 {
		t.Errorf("%d failures; want one without a letter, and one that was spared: %q", of, wrong)
	}
	e.deadLetterCount["two"], e.failed["refused1"], e.deadLetterCount["refused1"] = 3, failure{state: "FAILED"}, 1
	if of, wrong := e.missingDeadLetters([]requestRecord{refused}); of != 3 || len(wrong) > 0 {
		t.Errorf("%d failures; %q", of, wrong)
	}
}

func TestTortureJudge_ExcusesReadsOfKilledProcesses(t *testing.T) {
	began := time.Now()
	done := func(name, part, victim string) *injector {
		h := fault{faultKind: faultKind{name: name, component: part}, victim: victim}
		return &injector{injected: []injectedFault{{h, began.Add(5 * time.Second), began.Add(8 * time.Second)}}}
	}
	for _, c := range []struct {
		t    *injector
		from time.Duration
		want bool
	}{
		{done("killed", "process", "query-1"), 0, true},
		{done("killed", "process", "query-1"), 9 * time.Second, false},
		{done("killed", "process", "query-2"), 0, false},
		{done("told to end", "process", "query-1"), 0, false},
		{done("Kafka cut", "kafka", allProcesses), 7 * time.Second, true},
		{done("broker killed", "kafka", allProcesses), 20 * time.Second, true}, // with what was given up then
		{done("broker killed", "kafka", allProcesses), 24 * time.Second, false},
		{done("Kafka cut", "kafka", "worker-1"), 7 * time.Second, false},
		{done("Redis cut", "redis", allProcesses), 7 * time.Second, false},
	} {
		if got, long := c.t.mayBeLost("query-1", began.Add(c.from)); got != c.want || long {
			t.Errorf("%v, a promise %v before or after: %t", c.t.injected[0].fault, c.from, got)
		}
	}
}

func TestTortureWatcher_SeesOlderSnapshots(t *testing.T) {
	before := storedState{version: 5, checked: 9e6, hash: "a"}
	for name, c := range map[string]struct {
		now           storedState
		back, crossed bool
	}{
		"the same":                   {before, false, false},
		"later":                      {storedState{version: 6, checked: 10e6, hash: "b"}, false, false},
		"an earlier number":          {storedState{version: 4, checked: 10e6, hash: "b"}, true, false},
		"another of the same number": {storedState{version: 5, checked: 9e6, hash: "b"}, true, false},
		"a time that was crossed":    {storedState{version: 6, checked: 8e6, hash: "a"}, false, true},
		"a time long before":         {storedState{version: 6, checked: 6e6, hash: "a"}, true, true},
	} {
		if back, crossed := c.now.regressed(before); back != c.back || crossed != c.crossed {
			t.Errorf("%s: back is %t, crossed is %t", name, back, crossed)
		}
	}
}
