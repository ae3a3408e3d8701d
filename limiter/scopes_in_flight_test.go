package limiter

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// inFlightRig requests in-flight slots for several processes.
type inFlightRig struct {
	scriptRig
	at time.Time // the time of Redis' clock
}

// newInFlightRig returns a rig with a limit of calls in flight. The endpoint f/slow also has a minimum
// interval of a minute.
func newInFlightRig(t *testing.T, limit int) *inFlightRig {
	t.Helper()
	config := scopedConfig(
		Policy{Name: "slots", Limit: limit, Window: InFlight},
		Policy{Name: "slow", MinInterval: &MinInterval{Min: time.Minute}, Match: Match{Endpoints: []string{"f/slow"}}},
	)
	config.Breakers = nil
	r := &inFlightRig{scriptRig: newScriptRig(t, config), at: time.UnixMilli(1_700_000_000_000)}
	r.request("holder", schemas.High, 1, "f/d")
	r.at = r.at.Add(time.Minute) // the end of the quiet period
	return r
}

// request requests n slots for a process, and returns the tickets of the granted calls.
func (r *inFlightRig) request(process string, lane schemas.Lane, n int, endpoint string, credentials ...string) (tickets []string) {
	r.Helper()
	r.process, r.line = process, r.limiter.alloc.queueFor(lane, Call{Endpoint: endpoint, Key: "k", Credentials: credentials})
	d, g := r.send(r.at, n)
	for _, s := range g.queues[0].slots {
		tickets = append(tickets, fmt.Sprintf("%s%d:1", d.tickets, s.number))
	}
	return tickets
}

// end reports the end of calls.
func (r *inFlightRig) end(tickets ...string) {
	r.Helper()
	for _, ticket := range tickets {
		r.send(r.at, 0, callEndedEvent(r.line.key.candidates[0].costs[0].bucket, ticket))
	}
}

// The process that a wake-up message names has waited longest of all processes that wait for HIGH, or of
// all processes that wait for LOW if none waits for HIGH.
func TestWakeUp_NamesTheFirstProcess(t *testing.T) {
	type waiter struct {
		process string
		lane    schemas.Lane
	}
	for name, c := range map[string]struct {
		waiters []waiter
		want    string
	}{
		"HIGH waits shorter than LOW": {[]waiter{{"a", schemas.Low}, {"b", schemas.High}, {"c", schemas.Low}}, "b"},
		"several processes of HIGH":   {[]waiter{{"a", schemas.Low}, {"b", schemas.High}, {"c", schemas.High}}, "b"},
		"several processes of LOW":    {[]waiter{{"b", schemas.Low}, {"a", schemas.Low}, {"c", schemas.Low}}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newInFlightRig(t, 1)
			wakeUps := newWakeUpRecorder(t, r.redis)
			held := r.request("holder", schemas.High, 1, "f/d")
			for _, w := range c.waiters {
				r.at = r.at.Add(ms)
				r.request(w.process, w.lane, 1, "f/d")
			}
			r.end(held...)
			if got, want := wakeUps.take(), []string{c.want}; !slices.Equal(got, want) {
				t.Errorf("processes in wake-up messages: got %v, want %v", got, want)
			}
		})
	}
}

// A process leaves free slots to a process that has waited longer: one for each call that waits.
func TestInFlight_LeavesASlotPerWaitingCall(t *testing.T) {
	for name, c := range map[string]struct {
		held        int // slots of another process while process a requests two slots
		credentials []string
		want        int // slots that process b then gets of the three
	}{
		"two calls wait":                       {3, nil, 1},
		"one call waits, and one was granted":  {2, nil, 2},
		"two calls wait, with two credentials": {3, names(2), 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newInFlightRig(t, 3)
			held := r.request("holder", schemas.High, c.held, "f/d")
			held = append(held, r.request("a", schemas.High, 2, "f/d", c.credentials...)...)
			r.at = r.at.Add(ms)
			r.end(held...)
			if got := len(r.request("b", schemas.High, 3, "f/d")); got != c.want {
				t.Errorf("slots of process b: got %d, want %d", got, c.want)
			}
		})
	}
}

// A free slot is not left to a call that another policy delays.
func TestInFlight_LeavesNoSlotToADelayedCall(t *testing.T) {
	r := newInFlightRig(t, 1)
	r.end(r.request("a", schemas.High, 1, "f/slow")...)
	held := r.request("holder", schemas.High, 1, "f/d")
	r.request("a", schemas.High, 1, "f/slow") // rejected by the minimum interval
	r.end(held...)
	if got, want := len(r.request("b", schemas.Low, 1, "f/d")), 1; got != want {
		t.Errorf("slots of process b: got %d, want %d", got, want)
	}
}
