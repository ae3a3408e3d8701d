package limiter

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// slotsOf requests n slots for calls of an endpoint, and returns the times until the granted slots in ms,
// rounded to 10 ms.
func (r *reportedRig) slotsOf(lane schemas.Lane, endpoint string, n int) (waits []int) {
	r.Helper()
	line := r.line
	defer func() { r.line = line }()
	r.line = r.limiter.alloc.queueFor(lane, Call{Endpoint: endpoint, Key: "k"})
	_, g := r.send(r.at, n)
	for _, s := range g.queues[0].slots {
		waits = append(waits, 10*int(math.Round(float64(s.wait)/10_000)))
	}
	return waits
}

// The calls of LOW are spread evenly over the rest of the window of a paced limit. In each case LOW can
// make 1000 calls in 20 s, that is one call per 20 ms. The slots are at most 50 ms ahead of this pace.
func TestPace_SpreadsLowOverTheWindow(t *testing.T) {
	paced := []int{0, 0, 0, 10, 30, 50, 70, 90, 110, 130}
	for name, c := range map[string]struct {
		lane      schemas.Lane
		cost      int
		reserve   int
		flying    bool // a call of 500 units is in flight
		remaining int64
		want      []int
	}{
		"LOW":                     {schemas.Low, 1, 0, false, 1000, paced},
		"LOW, two units a call":   {schemas.Low, 2, 0, false, 2000, paced},
		"LOW, reserve for HIGH":   {schemas.Low, 1, 500, false, 1500, paced},
		"LOW, calls in flight":    {schemas.Low, 1, 0, true, 1500, paced},
		"HIGH, which has no pace": {schemas.High, 1, 0, false, 1000, make([]int, 12)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReportedRigOf(t, Policy{
				Limit: 10_000, Window: Window(time.Minute), Pace: true, HighReserve: Reserve{Calls: c.reserve},
				Costs: map[string]int{"f/large": 500, "f/paced": c.cost},
			})
			r.ends(r.one(), callReported, c.remaining, 20*time.Second)
			if c.flying {
				r.slotsOf(schemas.High, "f/large", 1)
			}
			if got := r.slotsOf(c.lane, "f/paced", 12); !slices.Equal(got, c.want) {
				t.Errorf("times until the slots in ms: got %v, want %v", got, c.want)
			}
		})
	}
}

// HIGH does not wait for the pace of LOW.
func TestPace_HighDoesNotWaitForLow(t *testing.T) {
	r := newReportedRigOf(t, Policy{Limit: 100, Window: Window(time.Minute), Pace: true})
	r.ends(r.one(), callReported, 10, 20*time.Second)
	r.slotsOf(schemas.Low, "f/paced", 1)
	if got, want := r.slotsOf(schemas.Low, "f/paced", 1), 0; len(got) != want {
		t.Errorf("slots of LOW directly after a call of LOW: got %d, want %d", len(got), want)
	}
	if got, want := r.slotsOf(schemas.High, "f/paced", 1), []int{0}; !slices.Equal(got, want) {
		t.Errorf("times until the slots of HIGH in ms: got %v, want %v", got, want)
	}
}
