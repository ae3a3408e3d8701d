package limiter

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// The script returns when a process calls again for slots that were not granted.
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
	}{
		"in-flight slot": {"f/slots", "f/slots", time.Second, 300 * ms},
		"first report":   {"f/core", "f/core", time.Second, 50 * ms},
		"minimum interval: half a horizon before":            {"f/slow", "f/slow", 59 * time.Second, time.Second - horizon/2},
		"minimum interval: within the maximum":               {"f/slow", "f/slow", time.Second, 10 * time.Second},
		"minimum interval, with in-flight slot: just before": {"f/slow", "f/slow-slots", 59 * time.Second, 990 * ms},
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
			if got := micros(request(c.endpoint).back); got != c.want {
				t.Errorf("time until the next call to Redis: got %v, want %v", got, c.want)
			}
		})
	}
}
