package limiter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/announced"
)

func healthyAfter(takes time.Duration) upstream {
	return func(atUpstream) answered { return answered{status: 200, takes: takes} }
}

// share returns the fraction of the calls that were made for the entity with this key.
func (f *callers) share(key string) float64 {
	all, _ := f.since(time.Time{})
	n := 0
	for _, c := range all {
		if c.call.Key == key {
			n++
		}
	}
	return float64(n) / float64(max(1, len(all)))
}

// A process always requests more in-flight slots than exist. The other processes must still get their
// share.
func TestInFlight_ProcessesTakeTurns(t *testing.T) {
	config := scopedConfig(Policy{Name: "slots", Limit: 3, Window: InFlight})
	inCallers(t, 1, 3, config, healthyAfter(300*ms), func(f *callers) {
		for i, m := range f.members {
			f.wait(m, 5, schemas.Low, Call{Endpoint: "f/d", Key: fmt.Sprint(i)})
		}
		f.passed(30 * time.Second)
		for i := range f.members {
			if share := f.share(fmt.Sprint(i)); share < 0.25 {
				t.Errorf("process %d of three had %.2f of the calls", i, share)
			}
		}
	})
}

// Queues with different keys that share a window take turns.
func TestQueues_SharingAWindowTakeTurns(t *testing.T) {
	config := scopedConfig(
		Policy{Name: "all", Limit: 20, Window: Window(time.Second), Scope: "all"},
		Policy{Name: "each", Limit: 1000, Window: Window(time.Minute), Scope: "{endpoint}"},
	)
	inCallers(t, 1, 1, config, healthyAfter(20*ms), func(f *callers) {
		for i := range 3 {
			f.wait(f.members[0], 40, schemas.Low, Call{Endpoint: fmt.Sprintf("f/%d", i), Key: fmt.Sprint(i)})
		}
		f.passed(30 * time.Second)
		for i := range 3 {
			if share := f.share(fmt.Sprint(i)); share < 0.25 {
				t.Errorf("queue %d of three had %.2f of the calls", i, share)
			}
		}
	})
}

// A call that no scoped policy counts needs no bucket, and is granted by the policies of the source.
func TestQueues_CallWithoutBucketsIsGranted(t *testing.T) {
	config := scopedConfig(Policy{Name: "core", Limit: 5, Window: Window(10 * time.Second), Match: Match{Endpoints: []string{"f/core"}}})
	config.Breakers = nil
	inCallers(t, 1, 1, config, healthyAfter(20*ms), func(f *callers) {
		begun := time.Now()
		f.wait(f.members[0], 1, schemas.High, Call{Endpoint: "f/other", Key: "other"})
		f.passed(15 * time.Second)
		if all, _ := f.since(begun); len(all) < 5 {
			t.Errorf("calls in 15 s: got %d, want at least 5", len(all))
		}
	})
}

// A call that waits for another policy does not block a free in-flight slot.
func TestInFlight_BlockedCallsHoldNoSlot(t *testing.T) {
	config := scopedConfig(
		Policy{Name: "slots", Limit: 3, Window: InFlight},
		Policy{Name: "core", Limit: 5, Window: Window(10 * time.Minute), Scope: "{credential}", Reported: true, Match: Match{Endpoints: []string{"f/core"}}},
	)
	inCallers(t, 1, 2, config, healthyAfter(100*ms), func(f *callers) {
		core := Call{Endpoint: "f/core", Key: "core"}
		f.wait(f.members[0], 3, schemas.High, core)
		f.passed(10 * time.Second) // during this time the units of the endpoint f/core are used up
		begun := time.Now()
		f.wait(f.members[0], 5, schemas.High, core)
		f.wait(f.members[1], 8, schemas.Low, Call{Endpoint: "f/other", Key: "other"})
		for range 5 { // every 2 s a wake-up message makes the rejected callers request slots again
			f.passed(2 * time.Second)
			f.members[0].limiter.onWakeUp(f.members[0].limiter.name)
		}
		if all, _ := f.since(begun); len(all) < 210 {
			t.Errorf("%d calls in 10 s with three in-flight slots, 100 ms each", len(all))
		}
	})
}

// The minimum interval also holds between the last call before a loss of state and the first call
// after it.
func TestMinInterval_SurvivesALossOfState(t *testing.T) {
	config := scopedConfig(Policy{Name: "slow", MinInterval: &MinInterval{Min: 3 * time.Second}})
	inCallers(t, 1, 2, config, healthyAfter(20*ms), func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 3, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		for range 10 {
			f.passed(f.span(3*time.Second, 9*time.Second))
			f.flushed()
			for _, m := range f.members {
				m.limiter.onWakeUp(m.limiter.name)
			}
		}
		all, _ := f.since(time.Time{})
		for i := 1; i < len(all); i++ {
			if gap := all[i].at.Sub(all[i-1].at); gap < 3*time.Second {
				t.Errorf("calls %v apart", gap)
			}
		}
	})
}

// After a loss of state, responses to earlier calls are ignored. They report remaining units, but
// Redis no longer knows how many units were used since those calls.
func TestReported_IgnoresResponsesFromBeforeALoss(t *testing.T) {
	window := &fixedWindow{limit: 60, length: time.Minute}
	n := 0
	answers := func(c atUpstream) answered {
		n++
		takes := 30 * ms
		if n > 1 && n <= 12 {
			takes = 5 * time.Second
		}
		ok := window.take(c.at, 1)
		return answered{status: 200, refused: !ok, takes: takes, notices: []announced.Notice{reportOf("core", int64(window.limit-window.used), window.ends.Sub(c.at), 6*time.Second)}}
	}
	config := scopedConfig(Policy{Name: "core", Limit: 60, Window: Window(time.Minute), Reported: true})
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 10, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		f.passed(5200 * ms)
		f.flushed()
		f.passed(20 * time.Second)
		if _, refused := f.since(time.Time{}); refused > 2 { // 2 refusals are allowed, because after the loss the remaining units are unknown
			t.Errorf("%d calls were refused", refused)
		}
	})
}

// Some upstreams always report that the window ends one window length after the response. A slow
// response must not open a new window.
func TestReported_SlowResponseOpensNoWindow(t *testing.T) {
	eachSeed(t, 1, func(t *testing.T, seed uint64) {
		var log []time.Time
		n := 0
		answers := func(c atUpstream) answered {
			for len(log) > 0 && c.at.Sub(log[0]) > 10*time.Second {
				log = log[1:]
			}
			ok := len(log) < 60
			if ok {
				log = append(log, c.at)
			}
			n++
			takes := 50 * ms
			if n%3 == 0 {
				takes += time.Duration(c.at.UnixNano() % int64(12*time.Second))
			}
			return answered{status: 200, refused: !ok, takes: takes, notices: []announced.Notice{reportOf("core", int64(60-len(log)), 10*time.Second, 100*ms)}}
		}
		config := scopedConfig(Policy{Name: "core", Limit: 60, Window: Window(10 * time.Second), Reported: true})
		inCallers(t, seed, 2, config, answers, func(f *callers) {
			for _, m := range f.members {
				f.wait(m, 20, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
			}
			f.passed(time.Minute)
			if all, refused := f.since(time.Time{}); refused > 0 || len(all) < 150 {
				t.Errorf("%d of %d calls were refused", refused, len(all))
			}
		})
	})
}

// A refund of a future slot makes no room before the time of that slot.
func TestRefund_MakesNoRoomBeforeItsTime(t *testing.T) {
	eachSeed(t, 1, func(t *testing.T, seed uint64) {
		config := scopedConfig(Policy{Name: "log", Limit: 8, Window: Window(time.Second), Scope: "all"})
		inCallers(t, seed, 2, config, healthyAfter(5*ms), func(f *callers) {
			for _, m := range f.members {
				for _, credential := range names(2) {
					f.wait(m, 10, schemas.Low, Call{Endpoint: "f/d", Key: "k", Credentials: []string{credential}})
				}
			}
			for range 150 {
				elapse(f.span(50*ms, 300*ms))
				l := f.members[0].limiter
				l.mu.Lock()
				w := l.alloc.buckets.candidate(Call{Endpoint: "f/d", Key: "k"}, "c0")
				l.mu.Unlock()
				refused := &Permit{limiter: l, slot: slot{candidate: w}, spent: time.Now()}
				refused.OpenScopeBreaker("credential", time.Millisecond, time.Second)
				elapse(f.span(0, 20*ms))
				l.CloseCredentialBreaker("c0")
			}
			var at []time.Time
			all, _ := f.since(time.Time{})
			for _, c := range all {
				at = append(at, c.at)
			}
			if most := mostWithin(at, time.Second); most > 8 || len(all) < 100 {
				t.Errorf("%d calls, %d within a second", len(all), most)
			}
		})
	})
}

// Units that a call costs above its estimate are charged, in short windows too.
func TestCost_ExtraUnitsAreCharged(t *testing.T) {
	var used []time.Time
	answers := func(c atUpstream) answered {
		for range 3 {
			used = append(used, c.at)
		}
		return answered{status: 200, takes: 10 * ms, notices: []announced.Notice{{Policy: "points", Limit: -1, Remaining: announced.Unknown, Cost: 3, Reset: -1}}}
	}
	config := scopedConfig(Policy{Name: "points", Unit: "points", Limit: 60, Window: Window(5 * time.Second)})
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 2, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		f.passed(time.Minute)
		if most := mostWithin(read(f, &used), 5*time.Second); most > 60+4*2 { // each of the 4 calls in flight can cost 2 units more than estimated
			t.Errorf("%d points within the window", most)
		}
	})
}

// A limit that changes while freshet runs allows no second burst.
func TestScopes_ChangedLimitAllowsNoSecondBurst(t *testing.T) {
	config := scopedConfig(Policy{Name: "w", Limit: 200, Target: 90, Window: Window(5 * time.Second), Scope: "all"})
	inCallers(t, 1, 2, config, healthyAfter(5*ms), func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 10, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		for i := range 8 {
			f.passed(3 * time.Second)
			changed := config
			changed.Policies = []Policy{config.Policies[0]}
			changed.Policies[0].Target = []int{0, 90}[i%2]
			f.put(changed, int64(i+1), false)
		}
		f.passed(5 * time.Second)
		var at []time.Time
		all, _ := f.since(time.Time{})
		for _, c := range all {
			at = append(at, c.at)
		}
		if most := mostWithin(at, 5*time.Second); most > 200 || len(all) < 200 {
			t.Errorf("%d calls, %d within the window", len(all), most)
		}
	})
}

// put gives all processes the same quota.
func (f *callers) put(config Config, revision int64, stopped bool) {
	f.Helper()
	q, err := NewQuota(config)
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range f.members {
		l := m.limiter
		l.mu.Lock()
		l.alloc.setQuota(q, revision, stopped)
		if stopped {
			l.alloc.releaseSlots()
		}
		l.alloc.queues.retryAll()
		l.mu.Unlock()
		l.wake()
	}
}

// A process that restarts with its old name does not take over the calls of its predecessor.
func TestInFlight_RestartedProcessTakesNoSlot(t *testing.T) {
	flying, most := 0, 0
	answers := func(atUpstream) answered {
		flying++
		most = max(most, flying)
		return answered{status: 200, takes: 5 * time.Second, then: func() { flying-- }}
	}
	config := scopedConfig(Policy{Name: "slots", Limit: 4, Window: InFlight})
	inCallers(t, 1, 1, config, answers, func(f *callers) {
		f.one(f.members[0], schemas.Low, Call{Endpoint: "f/d"})
		f.passed(12 * time.Second)
		for range 8 {
			m := f.members[0]
			m.stop()
			f.members = nil // the name is the index in f.members, so the process that f.begin starts gets the same name
			f.wait(f.begin(), 1, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
			f.passed(500 * ms)
		}
		f.passed(10 * time.Second)
		if most := read(f, &most); most > 4 {
			t.Errorf("got %d calls in flight at once", most)
		}
	})
}

// A permit that is released while no caller waits frees its in-flight slot at once. A second call
// of ReportEnd for a permit has no effect.
func TestPermit_SecondReportHasNoEffect(t *testing.T) {
	config := scopedConfig(
		Policy{Name: "slots", Limit: 1, Window: InFlight},
		Policy{Name: "bucket", Limit: 100, Restore: 0.1, Scope: "all", FreeStatuses: []int{304}},
	)
	inCallers(t, 1, 1, config, healthyAfter(5*ms), func(f *callers) {
		l := f.members[0].limiter
		f.one(f.members[0], schemas.Low, Call{Endpoint: "f/d"})
		f.passed(20 * time.Minute) // in this time the bucket restores all of its 100 units
		left := func() int64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.alloc.buckets.states["bucket:all"].state.remaining
		}
		for range 5 {
			ctx, cancel := context.WithTimeout(f.Context(), 2*time.Second)
			p, err := l.Acquire(ctx, schemas.Low, Call{Endpoint: "f/d"})
			cancel()
			if err != nil {
				f.Fatal("the in-flight slot is not free:", err)
			}
			elapse(time.Millisecond)
			l.wake() // wake Run, which removes the empty queue
			elapse(time.Millisecond)
			p.Release()
			elapse(500 * ms)
		}
		before := left()
		for range 10 {
			if p, err := l.Acquire(f.Context(), schemas.Low, Call{Endpoint: "f/d"}); err == nil && p.Spend() {
				p.ReportEnd(200, nil, refusedIf(200))
			}
			if p, err := l.Acquire(f.Context(), schemas.Low, Call{Endpoint: "f/d"}); err == nil && p.Spend() {
				p.ReportEnd(304, nil, refusedIf(304))
				p.ReportEnd(304, nil, refusedIf(304))
			}
		}
		elapse(time.Second)
		if got := before - left(); got < 9 || got > 11 {
			t.Errorf("got %d units for ten calls and ten free ones", got)
		}
	})
}
