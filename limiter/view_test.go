package limiter

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// seen is a source without a Limiter. Tests change its state in Redis by calling the script.
type seen struct {
	*testing.T
	rdb      redis.UniversalClient
	source   string
	quota    Quota
	revision int64
	stopped  bool
}

func (s *seen) call(d demand) grant {
	s.Helper()
	d.terms.text = s.quota.encode(s.revision, s.stopped)
	d.terms.midnights = s.quota.midnights(time.Now())
	g, err := script(s.source, s.rdb)(s.Context(), d)
	if err != nil {
		s.Fatal(err)
	}
	return g
}

func (s *seen) view() View {
	s.Helper()
	v, err := ReadView(s.Context(), s.rdb, s.source, s.quota, s.revision)
	if err != nil {
		s.Fatal(err)
	}
	if v.Source != s.source || time.Since(v.At).Abs() > time.Minute || v.Policies == nil || v.Processes == nil {
		s.Errorf("%+v", v)
	}
	return v
}

// until reads the view repeatedly until the source has the given state.
func (s *seen) until(state State) View {
	s.Helper()
	look := time.NewTicker(20 * ms)
	defer look.Stop()
	for deadline := time.After(20 * time.Second); ; {
		v := s.view()
		if v.State == state {
			return v
		}
		select {
		case <-look.C:
		case <-deadline:
			s.Fatalf("got %+v, want the state %s", v, state)
		}
	}
}

// in reports whether the time `at` is between `least` and `most` after the time of the view.
func in(v View, at *time.Time, least, most time.Duration) bool {
	return at != nil && at.Sub(v.At) >= least && at.Sub(v.At) <= most
}

func TestView_ShowsEveryState(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		t.Parallel()
		config := withDay()
		config.Policies = append(config.Policies, Policy{Name: "half", Limit: 40, Window: Window(500 * ms), HighReserve: Reserve{Calls: 10}},
			Policy{Name: "third", Limit: 30, Window: Window(300 * ms), Target: 20, HighReserve: Reserve{Calls: 5}})
		quota, err := NewQuota(config)
		if err != nil {
			t.Fatal(err)
		}
		s := &seen{T: t, rdb: rdb, source: servicetest.Name("nexon"), quota: quota}
		if v := s.view(); v.State != StateUnused || len(v.Policies)+len(v.Processes) > 0 || v.RampRatio != 1 || v.Low.PerSecond <= 0 || v.High.PerSecond < v.Low.PerSecond {
			t.Errorf("%+v", v)
		}
		if n := rdb.Exists(t.Context(), stateKey(s.source)).Val(); n != 0 {
			t.Error("reading created a state")
		}

		s.call(demand{high: 1})
		v := s.until(StateRestoringCount)
		if day := v.Policies[3]; day.Name != "day" || day.Used != nil || day.ResetsAt != nil || day.Limit != 20_000_000 || day.Window != "day" {
			t.Errorf("restoring-count: %+v", day)
		}
		s.call(demand{hasEvents: true, events: []event{dayCountEvent(Count{DayEnd: quota.dayEnd(time.Now()), Calls: 1000, At: time.Now()}, 0, 0)}})
		v = s.until(StateQuietPeriod)
		if !in(v, v.Until, 1, quota.Quiet()) {
			t.Errorf("quiet-period: %+v", v)
		}
		if half := v.Policies[1]; half.Name != "half" || half.Used == nil || *half.Used != 40 || half.Remaining != 0 {
			t.Errorf("half: %+v", half) // the policy "half" must show 0 remaining calls during the quiet period
		}
		for v = s.until(StateFlowing); v.Policies[0].Remaining < 25; v = s.view() { // wait until 25 calls remain: after the quiet period the burst grows from 0 to 25 calls
			sleep(10 * ms)
		}
		second, half, third, day := v.Policies[0], v.Policies[1], v.Policies[2], v.Policies[3]
		if second.Name != "second" || second.Used != nil || second.Remaining != 25 || second.RemainingForLow != 15 || second.Target != 450 || second.Limit != 500 || second.Window != "1s" {
			t.Errorf("second: %+v", second)
		}
		if *half.Used != 0 || half.Remaining != 40 || half.RemainingForLow != 30 || half.Target != 40 || half.Window != "500ms" {
			t.Errorf("half: %+v", half)
		}
		if third.Name != "third" || third.Limit != 30 || third.Target != 20 || third.Remaining != 20 || third.RemainingForLow != 15 {
			t.Errorf("third: %+v", third)
		}
		if day.Used == nil {
			t.Fatalf("day: %+v", day)
		}
		left := day.Remaining - day.RemainingForLow
		if *day.Used != 1000 || day.Remaining != 20_000_000-1000 || !in(v, day.ResetsAt, 0, 24*time.Hour) ||
			left < int64(25*(day.ResetsAt.Sub(v.At).Seconds()-1)) || left > int64(25*(day.ResetsAt.Sub(v.At).Seconds()+1)) {
			t.Errorf("day: %+v", day)
		}

		s.call(demand{hasEvents: true, events: []event{backoffEvent(700*ms, time.Second, 0)}})
		v = s.until(StateBackingOff)
		if !in(v, v.Until, 1, 700*ms) || v.RampRatio != 0.5 || v.Policies[0].Remaining != 0 {
			t.Errorf("backing-off: %+v", v)
		}
		now := time.Now()
		s.call(demand{hasEvents: true, events: []event{openEvent(700*ms, time.Second, now.UnixMicro())}})
		if v := s.view(); v.State != StateBreakerOpen || !in(v, v.Until, 1, time.Second) || v.Policies[0].Remaining != 0 {
			t.Errorf("breaker-open: %+v", v)
		}
		s.call(demand{hasEvents: true, events: []event{closeEvent(now.Add(time.Hour).UnixMicro())}})
		v = s.until(StateRamping)
		if v.RampRatio < 0.5 || v.RampRatio >= 1 || v.Until != nil {
			t.Errorf("ramping: %+v", v)
		}
		s.revision, s.stopped = 3, true
		s.call(demand{hasEvents: true})
		if v := s.view(); v.State != StateStopped || v.Revision != 3 || v.NewestRevision != 3 || v.Until != nil || v.Policies[0].Remaining != 0 {
			t.Errorf("stopped: %+v", v)
		}
		// Revision 4 of the settings is stored, but Redis has not received it.
		s.revision, s.stopped = 4, false
		if v := s.view(); v.State != StateStopped || v.Revision != 3 || v.NewestRevision != 4 {
			t.Errorf("not in force: %+v", v)
		}
		s.call(demand{hasEvents: true})
		if v := s.view(); v.State != StateRamping || v.Revision != 4 {
			t.Errorf("resumed: %+v", v)
		}
	})
}

func TestView_RemainingFallsWithEachCall(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	quota, err := NewQuota(Config{Policies: []Policy{{Name: "second", Limit: 40, Window: Window(time.Second), HighReserve: Reserve{Calls: 10}}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &seen{T: t, rdb: rdb, source: "nexon", quota: quota}
	now := time.Now()
	m.SetTime(now)
	s.call(demand{low: 1})
	m.SetTime(now.Add(5 * time.Second))
	s.call(demand{low: 7})
	s.call(demand{high: 5})
	if p := s.view().Policies[0]; *p.Used != 12 || p.Remaining != 28 || p.RemainingForLow != 18 {
		t.Errorf("%+v", p)
	}
	s.call(demand{high: 28})
	if p := s.view().Policies[0]; *p.Used != 40 || p.Remaining != 0 || p.RemainingForLow != 0 {
		t.Errorf("%+v", p)
	}
	// A lowered limit is shown at once, and Remaining is never negative.
	lower, err := NewQuota(Config{Policies: []Policy{{Name: "second", Limit: 20, Window: Window(time.Second)}}})
	if err != nil {
		t.Fatal(err)
	}
	s.quota, s.revision = lower, 1
	s.call(demand{low: 1})
	if p := s.view().Policies[0]; p.Limit != 20 || p.Remaining != 0 || p.RemainingForLow != 0 {
		t.Errorf("%+v", p)
	}
}

func TestView_ShowsWaitersAndExpiresReports(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		t.Parallel()
		config := second(500, 450, 100, 0)
		quota, err := NewQuota(config)
		if err != nil {
			t.Fatal(err)
		}
		s := &seen{T: t, rdb: rdb, source: servicetest.Name("nexon"), quota: quota}
		reg := prometheus.NewRegistry()
		deps := withoutLogs(Deps{Redis: rdb, Settings: &settingsDouble{}})
		deps.Metrics, deps.Process = reg, "a"
		l, err := New(s.source, config, deps)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		if p := mustAcquire(t, l, schemas.High); !p.Spend() {
			t.Error("Spend: got false, want true")
		}
		l.BackOff(time.Minute, time.Now())
		for range 3 {
			wg.Go(func() { _, _ = l.Acquire(ctx, schemas.Low, Call{}) })
		}
		var v View
		wait := func(what string, holds func() bool) {
			t.Helper()
			look := time.NewTicker(20 * ms)
			defer look.Stop()
			for deadline := time.After(20 * time.Second); ; {
				if v = s.view(); holds() {
					return
				}
				select {
				case <-look.C:
				case <-deadline:
					t.Fatalf("%s: %+v", what, v)
				}
			}
		}
		wait("who waits", func() bool {
			return len(v.Processes) == 1 && v.Processes[0].Low.Waiting == 3 && v.Processes[0].Low.OldestMS > 1000
		})
		if p := v.Processes[0]; p.Process != "a" || p.Low.Reason != "backoff" || p.High.Waiting != 0 || p.High.Granted < 1 || p.Low.Granted != 0 || v.At.Sub(p.At).Abs() > 3*time.Second {
			t.Errorf("%+v", p)
		}
		err = testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(`
# HELP rate_limiter_remaining Calls that a policy allows now, by priority.
# TYPE rate_limiter_remaining gauge
rate_limiter_remaining{policy="second",priority="HIGH",source="%[1]s"} 0
rate_limiter_remaining{policy="second",priority="LOW",source="%[1]s"} 0
# HELP rate_limiter_limit Limit of a policy in calls per window.
# TYPE rate_limiter_limit gauge
rate_limiter_limit{policy="second",source="%[1]s"} 500
# HELP rate_limiter_ramp_ratio Share of the full rate that is in use: 1, or less during the ten seconds after a backoff.
# TYPE rate_limiter_ramp_ratio gauge
rate_limiter_ramp_ratio{source="%[1]s"} 0.5
# HELP rate_limiter_state 1 for the current state of the source's limiter, 0 for the others.
# TYPE rate_limiter_state gauge
rate_limiter_state{source="%[1]s",state="backing-off"} 1
rate_limiter_state{source="%[1]s",state="flowing"} 0
rate_limiter_state{source="%[1]s",state="breaker-open"} 0
rate_limiter_state{source="%[1]s",state="ramping"} 0
rate_limiter_state{source="%[1]s",state="quiet-period"} 0
rate_limiter_state{source="%[1]s",state="stopped"} 0
rate_limiter_state{source="%[1]s",state="restoring-count"} 0
rate_limiter_state{source="%[1]s",state="unused"} 0
# HELP rate_limiter_waiting Calls that wait for their permit in this process.
# TYPE rate_limiter_waiting gauge
rate_limiter_waiting{priority="HIGH",source="%[1]s"} 0
rate_limiter_waiting{priority="LOW",source="%[1]s"} 3
# HELP rate_limiter_window_seconds Length of a policy's window.
# TYPE rate_limiter_window_seconds gauge
rate_limiter_window_seconds{policy="second",source="%[1]s"} 1
`, s.source)), "rate_limiter_remaining", "rate_limiter_limit", "rate_limiter_ramp_ratio", "rate_limiter_state", "rate_limiter_waiting", "rate_limiter_window_seconds")
		if err != nil {
			t.Error(err)
		}

		// Write reports of processes that crashed some time ago.
		report := func(name string, age time.Duration, waiting int) {
			text, err := json.Marshal(ProcessView{Process: name, At: s.view().At.Add(-age), Low: LaneView{Waiting: waiting}})
			if err != nil {
				t.Fatal(err)
			}
			rdb.HSet(t.Context(), reportsKey(s.source), name, text)
		}
		report("busy", waitingReportTTL/2, 7)
		report("crashed", waitingReportTTL+time.Second, 7)
		report("idle", idleReportInterval+time.Second, 0)
		report("old", reportsKeyTTL+time.Second, 0)
		rdb.HSet(t.Context(), reportsKey(s.source), "garbled", "{")
		var names []string
		for _, p := range s.view().Processes {
			names = append(names, p.Process)
		}
		kept := rdb.HLen(t.Context(), reportsKey(s.source)).Val()
		if strings.Join(names, " ") != "a busy idle" || kept != 4 {
			t.Errorf("got reports %q, and %d keys", names, kept)
		}
		if ttl := rdb.TTL(t.Context(), reportsKey(s.source)).Val(); ttl <= 0 || ttl > reportsKeyTTL {
			t.Errorf("got a TTL of %v for reports", ttl)
		}
		stop()
		wg.Wait()
		if held := rdb.HExists(t.Context(), reportsKey(s.source), "a").Val(); held {
			t.Error("a process that has ended is still shown")
		}
	})
}

func TestView_ShowsWhyCallsWait(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	l, err := New("nexon", withDay(), withoutLogs(Deps{Redis: rdb}))
	if err != nil {
		t.Fatal(err)
	}
	l.alloc.queues.low.push(&Permit{limiter: l, queue: l.alloc.queues.low, since: time.Now().Add(-time.Second)})
	l.alloc.queues.low.pushFront(&Permit{limiter: l, queue: l.alloc.queues.low, since: time.Now()})
	quota, err := NewQuota(withDay())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	next := func() time.Time { // time of the next report of a busy process
		now = now.Add(busyReportInterval)
		return now
	}
	waitReason := func() WaitReason {
		t.Helper()
		v, err := ReadView(t.Context(), rdb, "nexon", quota, 0)
		if err != nil || len(v.Processes) != 1 || v.Processes[0].Low.Waiting != 2 || v.Processes[0].Low.OldestMS < 1000 {
			t.Fatalf("%+v, %v", v, err)
		}
		return v.Processes[0].Low.Reason
	}
	for _, c := range []struct {
		set  func(on bool)
		want WaitReason
	}{
		{func(on bool) { l.alloc.active.unread = on }, reasonSettingsUnread},
		{func(on bool) { l.alloc.day.unsaved = on }, reasonDayCountUnsaved},
	} {
		c.set(true)
		if l.reports.schedule(next()); waitReason() != c.want || l.reports.wanted {
			t.Errorf("%q; want %q", waitReason(), c.want)
		}
		c.set(false)
	}
	l.alloc.active.unread, l.redis.failed = true, 1
	before := rdb.HGet(t.Context(), reportsKey("nexon"), "test").Val()
	if l.reports.schedule(next()); rdb.HGet(t.Context(), reportsKey("nexon"), "test").Val() != before {
		t.Error("Redis was called for the view during an outage")
	}
	l.alloc.active.unread, l.redis.failed = false, 0
	if l.reports.schedule(next()); !l.reports.wanted { // the next call to Redis must publish the report
		t.Error("no report is due")
	}
	l.alloc.active.stopped = true
	if l.reports.publish(); waitReason() != ReasonStopped {
		t.Error(waitReason())
	}
	l.alloc.active.stopped = false
	for reason, want := range map[refusal]WaitReason{
		2: "day", 3: reasonUnknownPolicy, refusedByDayCount: reasonDayCount, refusedByStateLoss: reasonStateLost, refusedByBreaker: reasonBreakerOpen,
	} {
		l.alloc.queues.low.refusal = reason
		if l.reports.publish(); waitReason() != want {
			t.Errorf("%q; want %q", waitReason(), want)
		}
	}
	if !l.reports.withWaiters { // the last report contained waiters, so one more report must follow
		t.Error("a short wait is still reported")
	}
	l.reports.withWaiters, l.reports.wanted, l.alloc.forceCall = false, false, false
	for l.alloc.queues.low.next() != nil {
		l.alloc.queues.low.serve()
	}
	if l.reports.schedule(next()); l.reports.wanted {
		t.Error("idle process: reported at once")
	}
	l.alloc.queues.high.used++
	if l.reports.schedule(next()); !l.reports.wanted {
		t.Error("process that calls without waiting: not reported")
	}
	l.alloc.queues.high.used++
	l.reports.wanted = false
	if l.reports.schedule(now.Add(time.Millisecond)); l.reports.wanted {
		t.Error("busy process: reported again at once")
	}
}

func TestReport_MakesACallForPermitsOnlyAfterAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		failed    int // number of failed calls in a row
		due, call bool
	}{
		"redis works": {0, true, false},
		"call failed": {1, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			rdb, _ := servicetest.MiniRedis(t)
			l, err := New("nexon", withDay(), withoutLogs(Deps{Redis: rdb}))
			if err != nil {
				t.Fatal(err)
			}
			l.reports.wanted, l.redis.failed = true, c.failed // no call to Redis has happened since the last report
			l.reports.schedule(time.Now())
			if l.reports.due != c.due || l.alloc.forceCall != c.call {
				t.Errorf("got a report %v, a call %v, want %v, %v", l.reports.due, l.alloc.forceCall, c.due, c.call)
			}
		})
	}
}

func TestReport_FailureIsFollowedByACall(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	l, err := New("nexon", withDay(), withoutLogs(Deps{Redis: rdb}))
	if err != nil {
		t.Fatal(err)
	}
	server.SetError("LOADING")
	if l.reports.publish(); !l.alloc.forceCall {
		t.Error("got no call after a failed report, want one, so that the outage is logged")
	}
}
