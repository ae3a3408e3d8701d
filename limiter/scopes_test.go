package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/announced"
)

// fixedWindow is an upstream's window, which begins with its first call.
type fixedWindow struct {
	limit  int
	length time.Duration
	used   int
	ends   time.Time
}

// take reports whether a call is allowed, and updates the window's remaining units and its end.
func (w *fixedWindow) take(at time.Time, units int) bool {
	if !at.Before(w.ends) {
		w.used, w.ends = 0, at.Add(w.length)
	}
	if w.used+units > w.limit {
		return false
	}
	w.used += units
	return true
}

func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("c%d", i)
	}
	return all
}

func scopedConfig(policies ...Policy) Config {
	return Config{Jitter: 10 * ms, Lease: 10 * time.Second, Policies: policies, Breakers: map[string]string{"credential": "{credential}"}}
}

// A reported limit is used up and never exceeded, though responses are late and out of order
// and another client uses the same budget.
func TestReported_IsUsedUpWithoutARefusal(t *testing.T) {
	eachSeed(t, 2, func(t *testing.T, seed uint64) {
		windows := map[string]*fixedWindow{}
		others := 0
		answers := func(c atUpstream) answered {
			w := windows[c.credential]
			if w == nil {
				w = &fixedWindow{limit: 100, length: 20 * time.Second}
				windows[c.credential] = w
			}
			if seed%2 == 1 && w.used%10 == 9 && w.take(c.at, 1) {
				others++
			}
			ok := w.take(c.at, 1)
			status := 200
			if !ok {
				status = 429
			}
			takes := 50*ms + time.Duration(c.at.UnixNano()%int64(400*ms))
			left, reset := int64(w.limit-w.used), w.ends.Sub(c.at)
			return answered{status: status, refused: !ok, takes: takes, notices: []announced.Notice{reportOf("core", left, reset, time.Second)}}
		}
		config := scopedConfig(Policy{Name: "core", Limit: 100, Window: Window(20 * time.Second), Scope: "{credential}", Reported: true})
		inCallers(t, seed, 3, config, answers, func(f *callers) {
			call := Call{Endpoint: "f/d", Method: "GET", Key: "k", Credentials: names(2)}
			start := time.Now()
			for _, m := range f.members {
				f.wait(m, 10, schemas.Low, call)
				f.wait(m, 2, schemas.High, call)
			}
			f.passed(2 * time.Minute)
			calls, refused := f.since(start)
			// When the other client takes the last units of a window, the upstream can refuse the calls
			// in flight. These are at most 3 in each of the 6 windows of each of the two credentials.
			if most := 2 * 100 * 6; refused > 3*6*2 || seed%2 == 0 && refused > 0 || len(calls)+others < most*95/100 {
				t.Errorf("%d calls of ours and %d of others, of %d, %d refused", len(calls), others, most, refused)
			}
		})
	})
}

// At most three calls may be in flight, and all three slots must be used. After the lease, the slots of
// a crashed process must be free again.
func TestInFlight_KeepsTheLimitAndFreesSlots(t *testing.T) {
	eachSeed(t, 1, func(t *testing.T, seed uint64) {
		flying, most, used, counted := 0, 0, time.Duration(0), time.Time{} // used: the sum of the times of all calls until `counted`
		count := func(began int) {
			now := time.Now()
			used += time.Duration(flying) * now.Sub(counted)
			flying, counted = flying+began, now
			most = max(most, flying)
		}
		answers := func(c atUpstream) answered {
			count(1)
			return answered{status: 200, refused: flying > 3, takes: 200*ms + time.Duration(c.at.UnixNano()%int64(time.Second)), then: func() { count(-1) }}
		}
		config := scopedConfig(Policy{Name: "slots", Limit: 3, Window: InFlight})
		inCallers(t, seed, 3, config, answers, func(f *callers) {
			usedIn := func(d time.Duration) time.Duration {
				f.mu.Lock()
				count(0)
				before := used
				f.mu.Unlock()
				f.passed(d)
				f.mu.Lock()
				defer f.mu.Unlock()
				count(0)
				return used - before
			}
			call := Call{Endpoint: "f/d", Key: "k"}
			for _, m := range f.members {
				f.wait(m, 5, schemas.Low, call)
			}
			f.passed(15 * time.Second)
			const window, want = 15 * time.Second, 3 * 15 * time.Second * 85 / 100 // network delays take the rest
			if got := usedIn(window); got < want {
				t.Errorf("sum of the times of calls in 15 s: got %v, want at least %v", got, want)
			}
			f.members[0].end() // the process crashes; the ends of its calls are never reported
			f.passed(11 * time.Second)
			if got := usedIn(window); got < want {
				t.Errorf("sum of the times of calls in 15 s, later than a lease after a crash: got %v, want at least %v", got, want)
			}
			if _, refused := f.since(time.Time{}); refused > 0 {
				t.Errorf("calls above the limit: got %d, want 0", refused)
			}
			if got, want := read(f, &most), 3; got != want {
				t.Errorf("calls at once: got %d, want %d", got, want)
			}
		})
	})
}

// Under constant demand, a leaky bucket must be used as fast as it drains. It must be charged with the
// actual costs of calls.
func TestLeakyBucket_ChargesActualCosts(t *testing.T) {
	eachSeed(t, 1, func(t *testing.T, seed uint64) {
		level, at, used := 1000.0, time.Time{}, 0.0
		answers := func(c atUpstream) answered {
			if at.IsZero() {
				at = c.at
			}
			level = min(1000, level+100*c.at.Sub(at).Seconds())
			at = c.at
			const asked, cost = 50, 20
			if level < asked {
				return answered{status: 429, refused: true, takes: 50 * ms}
			}
			level -= asked
			used += cost
			left := int64(level)
			return answered{
				status: 200, takes: 100 * ms, then: func() { level = min(1000, level+asked-cost) },
				notices: []announced.Notice{{Policy: "points", Limit: 1000, Remaining: left, Cost: cost, Reset: -1}},
			}
		}
		config := scopedConfig(Policy{Name: "points", Unit: "points", Limit: 1000, Restore: 100, Reported: true})
		inCallers(t, seed, 3, config, answers, func(f *callers) {
			call := Call{Endpoint: "f/d", Key: "k", Costs: map[string]int{"points": 50}}
			for _, m := range f.members {
				f.wait(m, 8, schemas.Low, call)
			}
			f.passed(40 * time.Second)
			before := used
			_, refused := f.since(time.Time{})
			f.passed(time.Minute)
			if got := used - before; refused > 0 || got < 0.95*6000 {
				t.Errorf("%v of 6000 points in a minute, %d refused", got, refused)
			}
		})
	})
}

// Each endpoint and each host has its own window, and calls keep their minimum interval.
func TestScopes_EndpointWindowsAndMinInterval(t *testing.T) {
	arrivals := map[string][]time.Time{}
	answers := func(c atUpstream) answered {
		for _, of := range []string{c.call.Endpoint, c.call.Host} {
			arrivals[of] = append(arrivals[of], c.at)
		}
		return answered{status: 200, takes: 20 * ms}
	}
	config := scopedConfig(
		Policy{Name: "host", Limit: 25, Window: Window(time.Second), Scope: "{host}", Match: Match{Endpoints: []string{"f/d", "f/e", "f/g"}}},
		Policy{Name: "endpoint", Limit: 25, Window: Window(time.Second), Scope: "{endpoint}", Match: Match{Endpoints: []string{"f/a", "f/b"}}},
		Policy{Name: "slow", MinInterval: &MinInterval{Min: 600 * ms, Max: 1800 * ms}, Match: Match{Endpoints: []string{"f/c"}}},
	)
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		for _, m := range f.members {
			for _, endpoint := range []string{"f/a", "f/b", "f/c"} {
				f.wait(m, 6, schemas.Low, Call{Endpoint: endpoint, Key: "k"})
			}
			for endpoint, host := range map[string]string{"f/d": "one", "f/e": "one", "f/g": "two"} {
				f.wait(m, 6, schemas.Low, Call{Endpoint: endpoint, Host: host, Key: "k"})
			}
		}
		f.passed(3 * time.Second)
		clear(arrivals)
		f.passed(30 * time.Second)
		for _, endpoint := range []string{"f/a", "f/b", "one", "two"} {
			all := arrivals[endpoint]
			if most := mostWithin(all, time.Second); most > 25 || len(all) < 25*30*95/100 {
				t.Errorf("%s: %d calls in 30 s, %d within a second", endpoint, len(all), most)
			}
		}
		gaps := arrivals["f/c"]
		for i := 1; i < len(gaps); i++ {
			if gap := gaps[i].Sub(gaps[i-1]); gap < 600*ms || gap > 2100*ms {
				t.Errorf("got an interval of %v", gap)
			}
		}
		if n := len(gaps); n < 21 || n > 29 {
			t.Errorf("got %d calls in 30 s, with an average interval of 1.2 s", n)
		}
	})
}

// mostWithin returns how many of the sorted times a window of the given length contains at most.
func mostWithin(all []time.Time, window time.Duration) (most int) {
	first := 0
	for i, at := range all {
		for at.Sub(all[first]) > window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// After a loss of state, the calls from before and after the loss together exceed no limit.
func TestScopes_LossOfStateExceedsNothing(t *testing.T) {
	eachSeed(t, 1, func(t *testing.T, seed uint64) {
		flying, most := 0, 0
		var all []time.Time
		window := &fixedWindow{limit: 50, length: 10 * time.Second}
		answers := func(c atUpstream) answered {
			flying++
			most = max(most, flying)
			all = append(all, c.at)
			ok := window.take(c.at, 1)
			a := answered{status: 200, refused: !ok, takes: 100*ms + time.Duration(c.at.UnixNano()%int64(time.Second)), then: func() { flying-- }}
			a.notices = []announced.Notice{reportOf("core", int64(window.limit-window.used), window.ends.Sub(c.at), 50*ms)}
			return a
		}
		config := scopedConfig(
			Policy{Name: "core", Limit: 50, Window: Window(10 * time.Second), Reported: true},
			Policy{Name: "slots", Limit: 8, Window: InFlight, Lease: 12 * time.Second},
			Policy{Name: "log", Limit: 6, Window: Window(time.Second), Scope: "{endpoint}"},
		)
		inCallers(t, seed, 3, config, answers, func(f *callers) {
			for _, m := range f.members {
				f.wait(m, 6, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
			}
			for range 4 {
				f.passed(f.span(20*time.Second, 40*time.Second))
				f.flushed()
			}
			f.passed(40 * time.Second)
			calls, refused := f.since(time.Time{})
			most, second := read(f, &most), mostWithin(read(f, &all), time.Second)
			if refused > 0 || most > 8 || second > 6 || len(calls) < 200 {
				t.Errorf("%d calls, %d refused, %d in flight, %d within a second", len(calls), refused, most, second)
			}
		})
	})
}

// The limiter learns the upstream's name of a budget from responses. Endpoints that share the
// budget are then charged together.
func TestResource_UsesTheReportedName(t *testing.T) {
	window := &fixedWindow{limit: 20, length: 5 * time.Second}
	answers := func(c atUpstream) answered {
		ok := window.take(c.at, 1)
		n := reportOf("route", int64(window.limit-window.used), window.ends.Sub(c.at), time.Millisecond)
		n.Resource = "abc"
		return answered{status: 200, refused: !ok, takes: 80 * ms, notices: []announced.Notice{n}}
	}
	config := scopedConfig(Policy{Name: "route", Limit: 20, Window: Window(5 * time.Second), Scope: "{resource}", Reported: true})
	inCallers(t, 1, 1, config, answers, func(f *callers) {
		for i := range 3 {
			f.wait(f.members[0], 5, schemas.Low, Call{Endpoint: fmt.Sprintf("f/%d", i), Key: "k"})
		}
		f.passed(10 * time.Second)
		begun := time.Now()
		f.passed(time.Minute)
		// Calls of the first 10 s do not count: the limiter did not know yet that the endpoints
		// share a budget.
		if calls, refused := f.since(begun); refused > 0 || len(calls) < 20*12*95/100 {
			t.Errorf("%d calls in a minute, %d refused", len(calls), refused)
		}
	})
}

// Only responses with counted statuses are charged to an error budget.
func TestErrorBudget_ChargesByStatus(t *testing.T) {
	status := 200
	answers := func(atUpstream) answered { return answered{status: status, takes: 50 * ms} }
	config := scopedConfig(
		Policy{Name: "errors", Limit: 100, Window: Window(time.Minute), CountedStatuses: []int{401, 403, 429}},
		Policy{Name: "second", Limit: 5, Window: Window(time.Second), Scope: "{method}"},
	)
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 6, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		f.passed(2 * time.Minute)
		recovered := time.Now()
		f.passed(time.Minute)
		if calls, _ := f.since(recovered); len(calls) < 5*60*95/100 {
			t.Errorf("got %d calls in a minute with only successes", len(calls))
		}
		f.mu.Lock()
		status = 403
		f.mu.Unlock()
		sentAt := time.Now()
		f.passed(time.Minute)
		if calls, _ := f.since(sentAt); len(calls) > 100+12 || len(calls) < 50 {
			t.Errorf("got %d calls in a minute with 403", len(calls))
		}
	})
}

// In every bucket HIGH must be served before LOW, and HIGH's reserve must be available at once.
func TestScopes_HighGoesBeforeLow(t *testing.T) {
	answers := func(atUpstream) answered { return answered{status: 200, takes: 50 * ms} }
	config := scopedConfig(Policy{Name: "leak", Limit: 40, Restore: 10, Scope: "{credential}", HighReserve: Reserve{Calls: 10}})
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 10, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		f.passed(30 * time.Second)
		begun := time.Now()
		for range 10 { // HIGH gets its slots at once, although LOW is saturated
			f.one(f.members[0], schemas.High, Call{Endpoint: "f/d", Key: "k"})
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("ten HIGH calls took %v", took)
		}
	})
}

// Many callers that wait at the end of a window do not exceed the limit of the next window. This
// also holds for two reported limits together.
func TestReported_ManyWaitersKeepTheLimit(t *testing.T) {
	eachSeed(t, 1, func(t *testing.T, seed uint64) {
		burst, daily := &fixedWindow{limit: 100, length: 15 * time.Second}, &fixedWindow{limit: 10000, length: 6 * time.Hour}
		seconds := func(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }
		answers := func(c atUpstream) answered {
			ok := burst.take(c.at, 1) && daily.take(c.at, 1)
			status := 200
			if !ok {
				status = 429
			}
			return answered{status: status, refused: !ok, takes: 20*ms + time.Duration(c.at.UnixNano()*7919%int64(1300*ms)), notices: []announced.Notice{
				reportOf("burst", int64(burst.limit-burst.used), seconds(burst.ends.Sub(c.at)), time.Second),
				reportOf("daily", int64(daily.limit-daily.used), seconds(daily.ends.Sub(c.at)), time.Second),
			}}
		}
		config := scopedConfig(
			Policy{Name: "burst", Limit: 100, Window: Window(15 * time.Second), Scope: "{credential}", Reported: true, HighReserve: Reserve{Calls: 10}},
			Policy{Name: "daily", Limit: 10000, Window: Window(6 * time.Hour), Scope: "{credential}", Reported: true, HighReserve: Reserve{Calls: 500}},
		)
		inCallers(t, seed, 2, config, answers, func(f *callers) {
			for _, m := range f.members {
				f.wait(m, 50, schemas.Low, Call{Endpoint: "f/d", Method: "GET", Key: "k"})
				f.wait(m, 10, schemas.High, Call{Endpoint: "f/d", Method: "GET", Key: "k"})
			}
			f.passed(70 * time.Second)
			if calls, refused := f.since(time.Time{}); refused > 0 || len(calls) < 380 {
				t.Errorf("%d calls, %d refused", len(calls), refused)
			}
		})
	})
}
