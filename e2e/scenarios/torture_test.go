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

func faultsOf(steps []step) (all []fault) {
	for _, s := range steps {
		all = append(all, s.faults...)
	}
	return all
}

func TestTorturePlan_DependsOnItsSeedOnly(t *testing.T) {
	const n = 200
	long := plan(7, n)
	if !reflect.DeepEqual(long, plan(7, n)) {
		t.Error("plans of the same seed: got different plans, want equal ones")
	}
	if reflect.DeepEqual(long, plan(8, n)) {
		t.Error("plans of two seeds: got equal plans, want different ones")
	}
	all := faultsOf(long)
	if short := faultsOf(plan(7, 12)); len(short) != 12 || !reflect.DeepEqual(short, all[:12]) {
		t.Errorf("short plan: got %v, want the beginning of the long plan", short)
	}
	if len(all) != n {
		t.Errorf("faults: got %d, want %d", len(all), n)
	}
	for _, kind := range faultKinds {
		times := 0
		for _, h := range all {
			if reflect.DeepEqual(h.faultKind, kind) {
				times++
				if h.length < kind.min.Truncate(10*time.Millisecond) || h.length > kind.max || !slices.Contains(kind.victims, h.victim) {
					t.Errorf("fault: got %v, want a length and a victim of %+v", h, kind)
				}
			}
		}
		if want := n / len(faultKinds); times < want {
			t.Errorf("faults of the kind %s: got %d, want at least %d", kind.name, times, want)
		}
	}
	pairs := 0
	for _, s := range long {
		if len(s.faults) == 2 {
			pairs++
			if s.faults[0].component == s.faults[1].component {
				t.Errorf("concurrent faults: got %v, want two components", s.faults)
			}
		}
	}
	if pairs == 0 {
		t.Error("steps with two faults: got 0, want some")
	}
}

// The judge of a torture run must report each lost request and each unnecessary call as an error. It
// must accept requests that have ended, and calls that a request needs.
func TestTortureJudge_SeesLostRequests(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	record := func(key string, version int64, when time.Time) requestRecord {
		return requestRecord{recordID: recordID{"high", 1, version}, UpdateRequest: schemas.UpdateRequest{
			Entity: schemas.Entity{Key: key}, Version: version, RequestedAt: when, Reason: schemas.Stale,
		}}
	}
	e := &finalState{
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
		"stored by a later fetch":       {record("k", 9, at(1)), true},
		"stored by an earlier one":      {record("k", 11, at(1)), false},
		"without a number, checked":     {record("k", 0, at(9)), true},
		"without a number, not checked": {record("k", 0, at(11)), false},
		"failed":                        {record("held", 9, at(1)), true},
		"held, and called for after it": {record("held", 11, at(15)), true},
		"held, and not called for":      {record("held", 11, at(25)), false},
		"without any state":             {record("nobody", 1, at(1)), false},
		"poison, dead-lettered":         {garbled, true},
		"poison, not dead-lettered":     {other, false},
	} {
		if got := e.settled(c.of); got != c.want {
			t.Errorf("%s: got settled %t, want %t", name, got, c.want)
		}
	}

	never := func(string, time.Time) (bool, bool) { return false, false }
	for name, promised := range map[string]int{"kept": 9, "broken": 11} {
		var judged table
		l := &tortureLoad{refreshes: []promise{{"k", "query-1", at(promised)}}, queuedReads: map[string]queuedRead{"k": {promise{"k", "query-1", at(9)}, at(1).UnixMicro()}}}
		judged.judgeNothingLost(e, []requestRecord{record("k", 9, at(1))}, l, never)
		if missed := name == "broken"; judged.missed != missed {
			t.Errorf("promise %s: got missed %t, want %t", name, judged.missed, missed)
		}
	}
	var lost table
	lost.judgeNothingLost(e, []requestRecord{record("k", 11, at(1))}, &tortureLoad{}, never)
	if !lost.missed {
		t.Error("lost record: got missed false, want true")
	}

	var broken, twice table
	broken.judgeTortureContract(simulator.Stats{Arrivals: 1, MaxInSlidingSecond: tortureLimit + 1})
	calls := arrivals([]called{
		{at(2), "k", 200, ""}, // this call does not count as unnecessary: the update request of second 1 needs it
		{at(3), "k", 200, ""},
		{at(5), "k", 500, simulator.InternalError},
		{at(6), "k", 200, ""}, // this call does not count as unnecessary: the two update requests of second 4 need it
		{at(7), "k", 0, ""},   // this call got no response, because its worker was killed; it does not count as unnecessary
		{at(8), "other", 400, ""},
	})
	needs := []requestRecord{record("k", 1, at(1)), record("k", 2, at(4)), record("k", 3, at(4))}
	hurts := func(part string) []injectedFault {
		return []injectedFault{{fault{faultKind: faultKind{component: part}, victim: allProcesses}, at(0), at(1)}}
	}
	if n := twice.judgeDuplicates(calls, needs, hurts("redis")); n != 2 || twice.missed || !broken.missed {
		t.Errorf("got %d unnecessary calls, missed %t, too many in a second missed %t; want 2, false, true", n, twice.missed, broken.missed)
	}
	var many, without table
	if many.judgeDuplicates(slices.Repeat(calls, maxRepeatsPerFault), needs, hurts("redis")); !many.missed {
		t.Error("too many repeated calls: got missed false, want true")
	}
	if without.judgeDuplicates(calls, needs, hurts("upstream")); !without.missed {
		t.Error("repeated calls without a fault: got missed false, want true")
	}
}

// A failed call allows one call of a known-good entity within confirmWithin. A second call of a
// known-good entity counts as unnecessary.
func TestTortureJudge_AllowsOneConfirmingCallPerFailure(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(ms)) }
	for name, test := range map[string]struct {
		later []int // times of the calls of a known-good entity, in ms after the failed call
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
			t.Errorf("%s: got %d unnecessary calls, want %d", name, got, test.want)
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
		t.Errorf("got %d repeats for %d faults, want %d for 2", most, faults, 2*maxRepeatsPerFault+2*tortureLimit)
	}
}

// A queued read is satisfied only if the entity is checked again after the check in the read's
// response, or fails after the read.
func TestTortureJudge_SeesAcceptedReadsWithoutARefresh(t *testing.T) {
	began := time.Now()
	checked, read := began.Add(10*time.Second), began.Add(40*time.Second)
	e := &finalState{
		stored: map[string]storedState{"k": {version: 10, checked: checked.UnixMicro()}},
		failed: map[string]failure{"failed": {state: "FAILED", updated: read.Add(time.Second).UnixMicro()}},
	}
	for name, c := range map[string]struct {
		key         string
		got         int64
		unconfirmed bool
		long        bool
		of          int
		want        bool // true: the judge must report a missed limit
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
		judged.judgeQueuedReads(e, l, func(string, time.Time) (bool, bool) { return c.unconfirmed, c.long })
		if judged.missed != c.want {
			t.Errorf("%s: got missed %t, want %t", name, judged.missed, c.want)
		}
	}
}

func TestTortureJudge_SeesAFailureWithoutDeadLetter(t *testing.T) {
	e := &finalState{
		failed:          map[string]failure{"one": {state: "FAILED", times: 1}, "two": {state: "SUSPENDED", times: 3}, "passes": {state: "RETRYING"}},
		deadLetterCount: map[string]int{"one": 1, "two": 2},
	}
	refused := requestRecord{UpdateRequest: schemas.UpdateRequest{Entity: schemas.Entity{Key: "refused1"}}}
	if of, wrong := e.missingDeadLetters([]requestRecord{refused, refused}); of != 2 || len(wrong) != 2 {
		t.Errorf("got %d failures, wrong %q; want 2, one without a dead letter and one not failed", of, wrong)
	}
	e.deadLetterCount["two"], e.failed["refused1"], e.deadLetterCount["refused1"] = 3, failure{state: "FAILED"}, 1
	if of, wrong := e.missingDeadLetters([]requestRecord{refused}); of != 3 || len(wrong) > 0 {
		t.Errorf("got %d failures, wrong %q; want 3, none", of, wrong)
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
		{done("terminated", "process", "query-1"), 0, false},
		{done("Kafka cut", "kafka", allProcesses), 7 * time.Second, true},
		{done("broker killed", "kafka", allProcesses), 20 * time.Second, true}, // this request may be lost, because the producer may drop records up to 15 s after the outage
		{done("broker killed", "kafka", allProcesses), 24 * time.Second, false},
		{done("Kafka cut", "kafka", "worker-1"), 7 * time.Second, false},
		{done("Redis cut", "redis", allProcesses), 7 * time.Second, false},
	} {
		if got, long := c.t.mayBeLost("query-1", began.Add(c.from)); got != c.want || long {
			t.Errorf("%v, request after %v: got lost %t, long %t, want %t, false", c.t.injected[0].fault, c.from, got, long, c.want)
		}
	}
}

func TestTortureWatcher_SeesOlderSnapshots(t *testing.T) {
	before := storedState{version: 5, checked: 9e6, hash: "a"}
	for name, c := range map[string]struct {
		now           storedState
		back, crossed bool
	}{
		"the same":                 {before, false, false},
		"later":                    {storedState{version: 6, checked: 10e6, hash: "b"}, false, false},
		"an earlier version":       {storedState{version: 4, checked: 10e6, hash: "b"}, true, false},
		"same version, other hash": {storedState{version: 5, checked: 9e6, hash: "b"}, true, false},
		"a time slightly earlier":  {storedState{version: 6, checked: 8e6, hash: "a"}, false, true},
		"a time much earlier":      {storedState{version: 6, checked: 6e6, hash: "a"}, true, true},
	} {
		if back, crossed := c.now.regressed(before); back != c.back || crossed != c.crossed {
			t.Errorf("%s: got older %t, crossed %t, want %t, %t", name, back, crossed, c.back, c.crossed)
		}
	}
}
