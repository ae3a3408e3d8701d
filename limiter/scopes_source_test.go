package limiter

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// sourceRig requests slots of a source that has a scoped policy, and a day with 5 calls of which one is
// reserved for HIGH.
type sourceRig struct {
	scriptRig
	at time.Time // the time of Redis' clock
}

func newSourceRig(t *testing.T) *sourceRig {
	t.Helper()
	config := scopedConfig(
		Policy{Name: "second", Limit: 20, Window: Window(time.Second)},
		Policy{Name: "each", Limit: 20, Window: Window(time.Second), Scope: "{endpoint}"},
		Policy{Name: "day", Limit: 5, Window: Day, HighReserve: Reserve{Calls: 1}},
	)
	r := &sourceRig{scriptRig: newScriptRig(t, config), at: time.Date(2026, 11, 20, 0, 1, 0, 0, time.UTC)}
	r.events = []event{noDayCountEvent()}
	r.request(schemas.High, 1)
	r.at = r.at.Add(time.Minute) // after the quiet period
	return r
}

// request requests n slots, and returns the reply for the queue.
func (r *sourceRig) request(lane schemas.Lane, n int) queueGrant {
	r.Helper()
	r.limiter.alloc.active.renewClockTerms(r.at)
	r.line = r.limiter.alloc.queueFor(lane, Call{Endpoint: "f/d", Key: "k"})
	_, g := r.send(r.at, n)
	return g.queues[0]
}

func (r *sourceRig) reason(g queueGrant) WaitReason {
	return r.limiter.alloc.active.quota.waitReason(g.refusal)
}

// The rules of the whole source also apply to the queues of a source with scoped policies.
func TestScopes_RulesOfTheSourceApply(t *testing.T) {
	for name, c := range map[string]struct {
		before func(r *sourceRig)
		lane   schemas.Lane
		slots  int // of 6 requested
		reason WaitReason
		back   time.Duration
	}{
		"emergency stop": {func(r *sourceRig) {
			r.limiter.alloc.setQuota(r.limiter.alloc.active.quota, 1, true)
		}, schemas.High, 0, ReasonStopped, time.Second},
		"count not restored": {func(r *sourceRig) {
			r.redis.FlushAll()
			r.request(schemas.High, 1)
			r.at = r.at.Add(time.Minute)
		}, schemas.High, 0, reasonDayCount, 50 * ms},
		"day, HIGH":                     {func(*sourceRig) {}, schemas.High, 5, "day", 10 * time.Second},
		"first call of the day, LOW":    {func(*sourceRig) {}, schemas.Low, 1, "day", 10 * time.Second},
		"calls reserved for HIGH, LOW":  {func(r *sourceRig) { r.request(schemas.High, 4) }, schemas.Low, 0, "day", 10 * time.Second},
		"calls reserved for HIGH, HIGH": {func(r *sourceRig) { r.request(schemas.High, 4) }, schemas.High, 1, "day", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSourceRig(t)
			c.before(r)
			g := r.request(c.lane, 6)
			if got := len(g.slots); got != c.slots {
				t.Errorf("slots: got %d, want %d", got, c.slots)
			}
			if got := r.reason(g); got != c.reason {
				t.Errorf("reason of the rejection: got %q, want %q", got, c.reason)
			}
			if got := micros(g.back); got != c.back {
				t.Errorf("time until the next call to Redis: got %v, want %v", got, c.back)
			}
		})
	}
}

// During a backoff, and while the breaker of the source is open, one probe of the source is granted.
func TestScopes_SourceProbeIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		event  func(at int64) event
		reason WaitReason
	}{
		"backoff": {func(at int64) event { return backoffEvent(time.Second, time.Second, at) }, reasonBackoff},
		"breaker": {func(at int64) event { return openEvent(time.Second, time.Minute, at) }, reasonBreakerOpen},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSourceRig(t)
			for _, s := range r.request(schemas.High, 1).slots {
				if s.probes != 0 {
					t.Errorf("probes of a call before: got %d, want 0", s.probes)
				}
			}
			r.events = []event{c.event(r.at.UnixMicro())}
			if g := r.request(schemas.High, 1); len(g.slots) != 0 || r.reason(g) != c.reason {
				t.Errorf("during the pause: got %d slots, reason %q; want 0, %q", len(g.slots), r.reason(g), c.reason)
			}
			r.at = r.at.Add(time.Second)
			g := r.request(schemas.High, 2)
			if len(g.slots) != 1 || g.slots[0].probes != probesSource || r.reason(g) != c.reason {
				t.Errorf("after the pause: got %+v, reason %q; want one slot with probes %d, %q", g.slots, r.reason(g), probesSource, c.reason)
			}
			if got, want := micros(g.back), 500*ms; got != want {
				t.Errorf("time until the next call to Redis, after the probe: got %v, want %v", got, want)
			}
		})
	}
}

// LOW can make the last call of a day in which nothing is reserved for HIGH.
func TestScopes_LowMakesTheLastCallOfADay(t *testing.T) {
	r := newSourceRig(t)
	config := r.limiter.alloc.active.quota.config
	config.Policies[2].HighReserve = Reserve{}
	quota, err := NewQuota(config)
	if err != nil {
		t.Fatal(err)
	}
	r.limiter.alloc.setQuota(quota, 1, false)
	r.request(schemas.High, 4)
	if got, want := len(r.request(schemas.Low, 1).slots), 1; got != want {
		t.Errorf("slots of LOW: got %d, want %d", got, want)
	}
}
