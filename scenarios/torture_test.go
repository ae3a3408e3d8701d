package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
)

func hurtsOf(strikes []strike) (all []hurt) {
	for _, s := range strikes {
		all = append(all, s.hurts...)
	}
	return all
}

func TestAPlanIsItsSeeds(t *testing.T) {
	const n = 200
	long := plan(7, n)
	if !reflect.DeepEqual(long, plan(7, n)) {
		t.Error("the same seed has another plan")
	}
	if reflect.DeepEqual(long, plan(8, n)) {
		t.Error("another seed has the same plan")
	}
	all := hurtsOf(long)
	if short := hurtsOf(plan(7, 12)); len(short) != 12 || !reflect.DeepEqual(short, all[:12]) {
		t.Errorf("a short plan is not the beginning of a long one: %v", short)
	}
	if len(all) != n {
		t.Errorf("%d faults of %d", len(all), n)
	}
	for _, of := range harms {
		times := 0
		for _, h := range all {
			if reflect.DeepEqual(h.harm, of) {
				times++
				if h.length < of.least.Truncate(10*time.Millisecond) || h.length > of.most || !slices.Contains(of.victims, h.victim) {
					t.Errorf("%v", h)
				}
			}
		}
		if least := n / len(harms); times < least {
			t.Errorf("%s comes %d times of %d", of.name, times, n)
		}
	}
	twice := 0
	for _, s := range long {
		if len(s.hurts) == 2 {
			twice++
			if s.hurts[0].part == s.hurts[1].part {
				t.Errorf("%v at once", s.hurts)
			}
		}
	}
	if twice == 0 {
		t.Error("never two at once")
	}
}

// What a run that is well never shows: that the judge would have seen it otherwise.
func TestTheJudgeSeesWhatIsLost(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	record := func(key string, version int64, when time.Time) asked {
		return asked{place: place{"high", 1, version}, UpdateRequest: schemas.UpdateRequest{
			Entity: schemas.Entity{Key: key}, Version: version, RequestedAt: when, Reason: schemas.Stale,
		}}
	}
	e := &ends{
		stored: map[string]seen{"k": {version: 10, checked: at(10).UnixMicro()}},
		failed: map[string]failure{"held": {"FAILED", 10, at(10).UnixMicro(), at(60).UnixMicro()}},
		buried: map[place]bool{{"high", 1, 99}: true},
		called: map[string]time.Time{"held": at(20)},
	}
	garbled := asked{place: place{"high", 1, 99}, garbled: true}
	other := asked{place: place{"high", 1, 98}, garbled: true}
	for name, c := range map[string]struct {
		of   asked
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
		if got := e.ended(c.of); got != c.want {
			t.Errorf("%s: ended is %t", name, got)
		}
	}

	never := func(string, time.Time) bool { return false }
	always := func(string, time.Time) bool { return true }
	for name, c := range map[string]struct {
		promised       int
		doubtful       func(string, time.Time) bool
		refresh, reads bool // missed
	}{
		"kept": {9, never, false, false}, "broken": {11, never, true, true}, "lost with its process": {11, always, true, false},
	} {
		var refresh, reads table
		p := promise{"k", "query-1", at(c.promised)}
		late := promise{"k", "query-1", at(c.promised).Add(time.Minute)} // a lock covers a read for so long
		refresh.nothingLost(e, []asked{record("k", 9, at(1))}, &load{insisted: []promise{p}, told: map[string]promise{"k": {"k", "query-1", at(9)}}}, c.doubtful)
		reads.nothingLost(e, []asked{record("k", 9, at(1))}, &load{insisted: []promise{{"k", "query-1", at(9)}}, told: map[string]promise{"k": late}}, c.doubtful)
		if refresh.missed != c.refresh || reads.missed != c.reads {
			t.Errorf("a promise that is %s: missed of a refresh is %t, of a read %t", name, refresh.missed, reads.missed)
		}
	}
	var lost table
	lost.nothingLost(e, []asked{record("k", 11, at(1))}, &load{}, never)
	if !lost.missed {
		t.Error("a lost record is not seen")
	}

	var broken, twice table
	broken.contract(simulator.Stats{Arrivals: 1, MaxInSlidingSecond: tortureLimit + 1})
	calls := []arrival{
		{at(2), "k", 200, ""}, // needed
		{at(3), "k", 200, ""},
		{at(5), "k", 500, simulator.InternalError},
		{at(6), "k", 200, ""}, // needed, by two
		{at(7), "k", 0, ""},   // of a process that was killed
		{at(8), "other", 400, ""},
	}
	needs := []asked{record("k", 1, at(1)), record("k", 2, at(4)), record("k", 3, at(4))}
	if n := twice.duplicates(calls, needs, 1); n != 2 || twice.missed || !broken.missed {
		t.Errorf("%d calls that nobody needed; missed is %t, and of too many in a second %t", n, twice.missed, broken.missed)
	}
	if twice.duplicates(slices.Repeat(calls, perFault), needs, 1); !twice.missed {
		t.Error("too many calls are not seen")
	}
}

func TestAPromiseIsCoveredOnlyByALockThatCameBack(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	of := &torturer{done: []doneHurt{{hurt{harm: harm{name: failover}}, at(10), at(12)}}}
	for name, c := range map[string]struct {
		fetched, promised int
		want              int
	}{
		"fetched in the gap":             {11, 12, 1},
		"fetched in it, and promised":    {11, 12 + int(lockLife/time.Second), 0}, // when no lock was left
		"fetched before it":              {9, 12, 0},
		"fetched after it, and promised": {13, 14, 0},
		"kept":                           {11, 10, 0},
	} {
		e := &ends{stored: map[string]seen{"k": {checked: at(c.fetched).UnixMicro()}}}
		if left, covered := of.uncovered(e, []promise{{"k", "query-1", at(c.promised)}}); covered != c.want || len(left) != 1-c.want {
			t.Errorf("%s: %d covered, %d left", name, covered, len(left))
		}
	}
}

func TestAPromiseIsInDoubtWhileItsProcessCouldNotKeepIt(t *testing.T) {
	began := time.Now()
	done := func(name, part, victim string) *torturer {
		h := hurt{harm: harm{name: name, part: part}, victim: victim}
		return &torturer{done: []doneHurt{{h, began.Add(5 * time.Second), began.Add(8 * time.Second)}}}
	}
	for _, c := range []struct {
		t    *torturer
		from time.Duration
		want bool
	}{
		{done("killed", "process", "query-1"), 0, true},
		{done("killed", "process", "query-1"), 9 * time.Second, false},
		{done("killed", "process", "query-2"), 0, false},
		{done("told to end", "process", "query-1"), 0, false},
		{done("Kafka cut", "kafka", everyone), 7 * time.Second, true},
		{done("broker killed", "kafka", everyone), 20 * time.Second, true}, // with what was given up then
		{done("broker killed", "kafka", everyone), 24 * time.Second, false},
		{done("Kafka cut", "kafka", "worker-1"), 7 * time.Second, false},
		{done("Redis cut", "redis", everyone), 7 * time.Second, false},
	} {
		if got := c.t.doubtful("query-1", began.Add(c.from)); got != c.want {
			t.Errorf("%v, a promise %v before or after: %t", c.t.done[0].hurt, c.from, got)
		}
	}
}

func TestTortureShort(t *testing.T) {
	servicetest.Kafka(t)
	servicetest.Postgres(t)
	if _, err := exec.LookPath("redis-server"); err != nil {
		end := t.Skipf
		if os.Getenv("FRESHET_TEST_REQUIRE") != "" {
			end = t.Fatalf
		}
		end("there is no redis-server, and %s kills one: apt-get install -y --no-install-recommends redis-server", t.Name())
	}
	t.Chdir("..")
	// A seed whose first ten faults are of all parts, with a failover of Redis and a broker
	// that is stopped among them, and short: it has a broker of its own to start.
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--seed", "833", "--faults", "10", "torture"}, &out, &out); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, out.Bytes())
	}
}

func TestTheJudgeSeesOldContents(t *testing.T) {
	s := &site{facets: map[string]string{facet: "basic"}}
	changed := time.Now()
	stored, payloads := map[string]seen{}, map[string]string{}
	made, err := contentsOf(t.Context(), facet, "basic") // before any change
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		key := fmt.Sprint("content", i)
		stored[key] = seen{hash: hex.EncodeToString(made[i].Hash[:])}
		payload, err := made[i].Payload()
		if err != nil {
			t.Fatal(err)
		}
		text, err := store.Snapshot{State: store.State{Encoding: payload.Encoding}, Payload: payload.Bytes}.Decode(nil)
		if err != nil {
			t.Fatal(err)
		}
		payloads[key] = string(text)
	}
	for name, c := range map[string]struct {
		checked time.Time
		missed  bool
	}{"checked before the change": {changed.Add(-time.Second), false}, "checked after it": {changed.Add(time.Second), true}} {
		var judged table
		for key, now := range stored {
			now.checked = c.checked.UnixMicro()
			stored[key] = now
		}
		if err := judged.contents(t.Context(), s, stored, payloads, []time.Time{changed}); err != nil || judged.missed != c.missed {
			t.Errorf("%s: missed is %t, %v", name, judged.missed, err)
		}
	}
	payloads["content7"] = payloads["content8"]
	var judged table
	for key, now := range stored {
		now.checked = changed.Add(-time.Second).UnixMicro()
		stored[key] = now
	}
	if err := judged.contents(t.Context(), s, stored, payloads, []time.Time{changed}); err != nil || !judged.missed {
		t.Errorf("a payload of another: missed is %t, %v", judged.missed, err)
	}
}

func TestTheWitnessSeesWhatGoesBack(t *testing.T) {
	before := seen{version: 5, checked: 9e6, hash: "a"}
	for name, c := range map[string]struct {
		now           seen
		back, crossed bool
	}{
		"the same":                   {before, false, false},
		"later":                      {seen{version: 6, checked: 10e6, hash: "b"}, false, false},
		"an earlier number":          {seen{version: 4, checked: 10e6, hash: "b"}, true, false},
		"another of the same number": {seen{version: 5, checked: 9e6, hash: "b"}, true, false},
		"a time that was crossed":    {seen{version: 6, checked: 8e6, hash: "a"}, false, true},
		"a time long before":         {seen{version: 6, checked: 6e6, hash: "a"}, true, true},
	} {
		if back, crossed := c.now.back(before); back != c.back || crossed != c.crossed {
			t.Errorf("%s: back is %t, crossed is %t", name, back, crossed)
		}
	}
}
