package limiter

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/announced"
)

// If no response reports the remaining units, the configured limit applies to each window.
func TestReported_WithoutReportsTheConfiguredLimitApplies(t *testing.T) {
	window := &fixedWindow{limit: 60, length: 20 * time.Second}
	answers := func(c atUpstream) answered {
		ok := window.take(c.at, 1)
		return answered{status: 200, refused: !ok, takes: 100 * ms}
	}
	config := scopedConfig(Policy{Name: "core", Limit: 60, Window: Window(20 * time.Second), Reported: true})
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 10, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		f.passed(65 * time.Second)
		calls, refused := f.since(time.Time{})
		if refused > 0 {
			t.Errorf("calls above the limit: got %d, want 0", refused)
		}
		if got, want := len(calls), 3*60; got < want {
			t.Errorf("calls in three windows: got %d, want at least %d", got, want)
		}
	})
}

// Of two credentials that can make a call now, the one with the larger share of its units left is used.
func TestCandidates_LargerShareIsUsed(t *testing.T) {
	for name, policy := range map[string]Policy{
		"log of units": {Limit: 20, Window: Window(time.Minute)},
		"leaky bucket": {Limit: 20, Restore: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			policy.Name, policy.Scope = "units", "{credential}"
			answers := func(atUpstream) answered { return answered{status: 200, takes: 10 * ms} }
			inCallers(t, 1, 1, scopedConfig(policy), answers, func(f *callers) {
				call := Call{Endpoint: "f/d", Key: "k", Credentials: names(2)}
				f.one(f.members[0], schemas.Low, call)
				f.one(f.members[0], schemas.Low, call)
				f.passed(time.Hour) // now both credentials have unused units
				used := map[string]int{}
				for range 10 {
					_, credential := f.one(f.members[0], schemas.Low, call)
					used[credential]++
					f.passed(time.Second)
				}
				for _, credential := range names(2) {
					if used[credential] != 5 {
						t.Errorf("calls with credential %s: got %d, want 5", credential, used[credential])
					}
				}
			})
		})
	}
}

// A call takes units from several policies. The share of a credential is its smallest share in any of them.
func TestCandidates_SmallestShareCounts(t *testing.T) {
	endpoints := func(name string) Match { return Match{Endpoints: []string{name, "f/all"}} }
	for name, used := range map[string][3]int{ // the units of credential c0 that are used in each policy
		"much is used in the log":    {16, 2, 1},
		"much is used in the bucket": {2, 16, 1},
		"most slots are in use":      {2, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newScriptRig(t, scopedConfig(
				Policy{Name: "log", Limit: 20, Window: Window(time.Minute), Scope: "{credential}", Match: endpoints("f/log")},
				Policy{Name: "bucket", Limit: 20, Restore: 1, Scope: "{credential}", Match: endpoints("f/bucket")},
				Policy{Name: "slots", Limit: 4, Window: InFlight, Scope: "{credential}", Match: endpoints("f/slots")},
			))
			at := time.UnixMilli(1_700_000_000_000)
			take := func(endpoint string, n int, credentials ...string) []queueSlot {
				r.line = r.limiter.alloc.queueFor(schemas.Low, Call{Endpoint: endpoint, Key: "k", Credentials: credentials})
				_, g := r.send(at, n)
				return g.queues[0].slots
			}
			take("f/all", 1, names(2)...)
			at = at.Add(time.Hour) // now both credentials have all their units
			for i, endpoint := range []string{"f/log", "f/bucket", "f/slots"} {
				take(endpoint, used[i], "c0")
				take(endpoint, []int{4, 4, 1}[i], "c1")
			}
			got := take("f/all", 1, names(2)...)
			if want := 1; len(got) != 1 || got[0].candidate != want {
				t.Errorf("slots with one of the credentials: got %+v, want one of candidate %d, which has the larger share", got, want)
			}
		})
	}
}

// The share of a reported limit is a part of the largest number of units that was reported. Calls in flight
// count as used.
func TestCandidates_ShareOfAReportedLimit(t *testing.T) {
	for name, c := range map[string]struct {
		reports [2][]int64 // remaining units of each credential, as reported one after the other
		flying  int        // calls of c1 in flight
		want    int        // index of the credential
	}{
		"limit above the configured limit": {[2][]int64{{600, 300}, {60, 45}}, 0, 1},
		"equal shares: the first":          {[2][]int64{{60}, {60}}, 0, 0},
		"calls in flight":                  {[2][]int64{{60, 30}, {60}}, 45, 0},
	} {
		t.Run(name, func(t *testing.T) {
			config := scopedConfig(Policy{Name: "core", Limit: 60, Window: Window(time.Minute), Scope: "{credential}", Reported: true})
			config.Breakers = nil
			r := newScriptRig(t, config)
			at := time.UnixMilli(1_700_000_000_000)
			take := func(n int, credentials ...string) (demand, grant) {
				r.line = r.limiter.alloc.queueFor(schemas.High, Call{Endpoint: "f/d", Key: "k", Credentials: credentials})
				return r.send(at, n)
			}
			take(1, "c0")
			at = at.Add(time.Hour)
			for i, credential := range names(2) {
				for _, left := range c.reports[i] {
					at = at.Add(ms)
					d, g := take(1, credential)
					slot := g.queues[0].slots[0]
					report := callReport{outcome: callReported, units: 1, slot: g.now + slot.wait, remaining: left, until: at.Add(time.Minute).UnixMicro()}
					r.send(at, 0, reportEvent(r.firstBucket(), ticketOf(d, slot), report))
				}
			}
			if c.flying > 0 {
				take(c.flying, "c1")
			}
			_, g := take(1, names(2)...)
			if got := g.queues[0].slots; len(got) != 1 || got[0].candidate != c.want {
				t.Errorf("slots with one of the credentials: got %+v, want one of candidate %d", got, c.want)
			}
		})
	}
}

// If several policies delay a call equally, the first of them is the reason.
func TestQueues_FirstOfEqualReasonsIsNamed(t *testing.T) {
	interval := &MinInterval{Min: 3 * time.Second}
	r := newScriptRig(t, scopedConfig(Policy{Name: "a", MinInterval: interval}, Policy{Name: "b", MinInterval: interval}))
	at := time.UnixMilli(1_700_000_000_000)
	r.send(at, 1)
	_, g := r.send(at.Add(time.Minute), 2)
	quota := r.limiter.alloc.active.quota
	if got, want := quota.waitReason(g.queues[0].refusal), WaitReason("a"); got != want {
		t.Errorf("policy that rejects the second call: got %q, want %q", got, want)
	}
}

// If the upstream reports fewer units than the leaky bucket has, because another client uses them too,
// the next calls wait until units are restored.
func TestLeakyBucket_FollowsALowerReport(t *testing.T) {
	answers := func(atUpstream) answered {
		return answered{status: 200, takes: 10 * ms, notices: []announced.Notice{reportOf("points", 0, announced.Unknown, 0)}}
	}
	config := scopedConfig(Policy{Name: "points", Limit: 100, Restore: 1, Reported: true})
	inCallers(t, 1, 1, config, answers, func(f *callers) {
		call := Call{Endpoint: "f/d", Key: "k"}
		f.one(f.members[0], schemas.Low, call)
		f.passed(3 * time.Minute) // the bucket is full again
		start := time.Now()
		f.wait(f.members[0], 5, schemas.Low, call)
		f.passed(20 * time.Second)
		calls, _ := f.since(start)
		// Up to five calls are in flight before the first report.
		if got, want := len(calls), 5+20+1; got > want {
			t.Errorf("calls in 20 s: got %d, want at most %d", got, want)
		}
		if got, want := len(calls), 15; got < want {
			t.Errorf("calls in 20 s: got %d, want at least %d", got, want)
		}
	})
}

// A policy that changes its kind begins as if its units were used up.
func TestScopes_ChangedKindBeginsUsedUp(t *testing.T) {
	log := Policy{Name: "units", Limit: 20, Window: Window(10 * time.Second)}
	for name, c := range map[string]struct {
		before, after Policy
		within        time.Duration // after the change
		most, least   int
	}{
		"log to leaky bucket":      {log, Policy{Name: "units", Limit: 20, Restore: 1}, 10 * time.Second, 10, 6},
		"log to minimum interval":  {log, Policy{Name: "units", MinInterval: &MinInterval{Min: 5 * time.Second}}, 11 * time.Second, 2, 1},
		"leaky bucket to log":      {Policy{Name: "units", Limit: 20, Restore: 1}, log, 10 * time.Second, 0, 0},
		"minimum interval to log":  {Policy{Name: "units", MinInterval: &MinInterval{Min: 5 * time.Second}}, log, 10 * time.Second, 0, 0},
		"log to log, both windows": {log, log, 10 * time.Second, 20, 18},
	} {
		t.Run(name, func(t *testing.T) {
			c.before.Scope, c.after.Scope = "{endpoint}", "{endpoint}"
			inCallers(t, 1, 1, scopedConfig(c.before), healthyAfter(5*ms), func(f *callers) {
				f.wait(f.members[0], 10, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
				f.passed(40 * time.Second)
				f.put(scopedConfig(c.after), 1, false)
				changed := time.Now()
				f.passed(c.within)
				calls, _ := f.since(changed)
				if got := len(calls); got > c.most {
					t.Errorf("calls within %v after the change: got %d, want at most %d", c.within, got, c.most)
				}
				if got := len(calls); got < c.least {
					t.Errorf("calls within %v after the change: got %d, want at least %d", c.within, got, c.least)
				}
				f.passed(20 * time.Second)
				if all, _ := f.since(changed); len(all) == len(calls) {
					t.Error("calls later: got 0, want some")
				}
			})
		})
	}
}
