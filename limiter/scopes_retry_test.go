package limiter

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// The script returns when a process calls again for slots that were not granted, and why they were not granted.
func TestQueues_RetryTimeDependsOnThePolicy(t *testing.T) {
	config := scopedConfig(
		Policy{Name: "slots", Limit: 1, Window: InFlight, Match: Match{Endpoints: []string{"f/slots", "f/slow-slots"}}},
		Policy{Name: "core", Limit: 60, Window: Window(time.Minute), Reported: true, Match: Match{Endpoints: []string{"f/core"}}},
		Policy{Name: "slow", MinInterval: &MinInterval{Min: 59950 * ms}, Match: Match{Endpoints: []string{"f/slow", "f/slow-slots"}}}, // 60 s between slots
	)
	config.Breakers = nil
	for name, c := range map[string]struct {
		first    string // endpoint of a call before
		endpoint string
		after    time.Duration // from that call
		want     time.Duration
		reason   WaitReason
	}{
		"in-flight slot": {"f/slots", "f/slots", time.Second, 300 * ms, "slots"},
		"first report":   {"f/core", "f/core", time.Second, 50 * ms, "core"},
		"minimum interval: half a horizon before":            {"f/slow", "f/slow", 59 * time.Second, time.Second - horizon/2, "slow"},
		"minimum interval: within the maximum":               {"f/slow", "f/slow", time.Second, 10 * time.Second, "slow"},
		"minimum interval, with in-flight slot: just before": {"f/slow", "f/slow-slots", 59 * time.Second, 990 * ms, "slow"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newScriptRig(t, config)
			at := time.UnixMilli(1_700_000_000_000)
			request := func(endpoint string) queueGrant {
				r.line = r.limiter.alloc.queueFor(schemas.High, Call{Endpoint: endpoint, Key: "k"})
				_, g := r.send(at, 1)
				return g.queues[0]
			}
			request(c.first) // creates the state
			at = at.Add(time.Hour)
			if got := len(request(c.first).slots); got != 1 {
				t.Fatalf("slots of the first call: got %d, want 1", got)
			}
			at = at.Add(c.after)
			g := request(c.endpoint)
			if got := micros(g.back); got != c.want {
				t.Errorf("time until the next call to Redis: got %v, want %v", got, c.want)
			}
			if got := r.limiter.alloc.active.quota.waitReason(g.refusal); got != c.reason {
				t.Errorf("reason of the rejection: got %q, want %q", got, c.reason)
			}
		})
	}
}

// A queue that gets all its slots has no reason of a rejection, also if a policy delays its slots.
func TestQueues_GrantedSlotsHaveNoReason(t *testing.T) {
	r := newBucketRig(t, Policy{Name: "slow", MinInterval: &MinInterval{Min: 950 * ms}})
	r.take(1)
	r.at = r.at.Add(900 * ms)
	_, g := r.send(r.at, 1)
	if got := g.queues[0]; len(got.slots) != 1 || got.slots[0].wait != 100_000 || got.refusal != notRefused {
		t.Errorf("grant 100 ms before the end of the minimum interval: got %+v, want one slot in 100000 us and no refusal", got)
	}
}

// After a loss of state, no slot is before the end of the quiet period of 200 ms. Slots are granted from one
// horizon before.
func TestReported_FirstCallWaitsForTheQuietPeriod(t *testing.T) {
	r := newReportedRig(t)
	quota := r.limiter.alloc.active.quota
	r.redis.FlushAll()
	lost := r.at
	for _, after := range []time.Duration{0, 40 * ms} {
		_, g := r.send(lost.Add(after), 1)
		if got, want := quota.waitReason(g.queues[0].refusal), reasonStateLost; len(g.queues[0].slots) != 0 || got != want {
			t.Errorf("%v after the loss: got %d slots, reason %q; want 0, %q", after, len(g.queues[0].slots), got, want)
		}
	}
	r.at = lost.Add(60 * ms)
	if got, want := r.one().slot, lost.Add(200*ms).UnixMicro(); got != want {
		t.Errorf("first slot: got %d, want %d", got, want)
	}
	_, g := r.send(lost.Add(250*ms), 1)
	if got, want := quota.waitReason(g.queues[0].refusal), WaitReason("core"); got != want {
		t.Errorf("reason after the quiet period: got %q, want %q", got, want)
	}
}
