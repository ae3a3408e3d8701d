package limiter

import (
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
	r.at = r.at.Add(time.Hour) // after the quiet period
	return r
}

// request requests n slots for a process, and returns the tickets of the granted calls.
func (r *inFlightRig) request(process string, lane schemas.Lane, n int, endpoint string, credentials ...string) (tickets []string) {
	r.Helper()
	r.process, r.line = process, r.limiter.alloc.queueFor(lane, Call{Endpoint: endpoint, Key: "k", Credentials: credentials})
	d, g := r.send(r.at, n)
	for _, s := range g.queues[0].slots {
		tickets = append(tickets, ticketOf(d, s))
	}
	return tickets
}

// end reports the end of calls.
func (r *inFlightRig) end(tickets ...string) {
	r.Helper()
	for _, ticket := range tickets {
		r.send(r.at, 0, callEndedEvent(r.firstBucket(), ticket))
	}
}

// waiter is a process that requests an in-flight slot in vain.
type waiter struct {
	process string
	lane    schemas.Lane
}

// The process that a wake-up message names has waited longest of all processes that wait for HIGH, or of
// all processes that wait for LOW if none waits for HIGH.
func TestWakeUp_NamesTheFirstProcess(t *testing.T) {
	for name, c := range map[string]struct {
		waiters []waiter
		want    string
	}{
		"HIGH waits shorter than LOW": {[]waiter{{"a", schemas.Low}, {"b", schemas.High}, {"c", schemas.Low}}, "b"},
		"several processes of HIGH":   {[]waiter{{"a", schemas.Low}, {"b", schemas.High}, {"c", schemas.High}}, "b"},
		"several processes of LOW":    {[]waiter{{"b", schemas.Low}, {"a", schemas.Low}, {"c", schemas.Low}}, "b"},
		"the first requests again":    {[]waiter{{"b", schemas.Low}, {"a", schemas.Low}, {"b", schemas.Low}}, "b"},
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

// A free slot is given to a process only if no other process of its lane has waited longer, and none waits
// for HIGH.
func TestInFlight_FirstProcessGetsTheSlot(t *testing.T) {
	for name, c := range map[string]struct {
		waiters []waiter // one per millisecond, except that the first two begin to wait at the same time
		next    waiter
		want    int // slots that the next process gets
	}{
		"the only process":                {nil, waiter{"c", schemas.Low}, 1},
		"one that waits for the longest":  {[]waiter{{"a", schemas.Low}, {"a", schemas.Low}, {"b", schemas.Low}}, waiter{"a", schemas.Low}, 1},
		"one that waits for shorter":      {[]waiter{{"a", schemas.Low}, {"a", schemas.Low}, {"b", schemas.Low}}, waiter{"b", schemas.Low}, 0},
		"one of two that wait as long":    {[]waiter{{"a", schemas.Low}, {"b", schemas.Low}}, waiter{"b", schemas.Low}, 1},
		"HIGH while LOW waits for longer": {[]waiter{{"a", schemas.Low}}, waiter{"b", schemas.High}, 1},
		"LOW while HIGH waits":            {[]waiter{{"a", schemas.High}}, waiter{"b", schemas.Low}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newInFlightRig(t, 1)
			held := r.request("holder", schemas.High, 1, "f/d")
			for i, w := range c.waiters {
				if i != 1 {
					r.at = r.at.Add(ms)
				}
				r.request(w.process, w.lane, 1, "f/d")
			}
			r.at = r.at.Add(ms)
			r.end(held...)
			if got := len(r.request(c.next.process, c.next.lane, 1, "f/d")); got != c.want {
				t.Errorf("slots of process %s for %s: got %d, want %d", c.next.process, c.next.lane, got, c.want)
			}
		})
	}
}

// A process that was granted a slot, and has more calls that wait, waits behind the other processes.
func TestInFlight_GrantedProcessWaitsBehindOthers(t *testing.T) {
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		t.Run(string(lane), func(t *testing.T) {
			r := newInFlightRig(t, 1)
			held := r.request("holder", schemas.High, 1, "f/d")
			r.request("a", lane, 2, "f/d")
			r.at = r.at.Add(ms)
			r.request("b", lane, 2, "f/d")
			r.at = r.at.Add(ms)
			r.end(held...)
			held = r.request("a", lane, 2, "f/d")
			wakeUps := newWakeUpRecorder(t, r.redis)
			r.end(held...)
			if got, want := wakeUps.take(), []string{"b"}; !slices.Equal(got, want) {
				t.Errorf("processes in wake-up messages: got %v, want %v", got, want)
			}
		})
	}
}

// The set of calls in flight expires after two leases, so that buckets that are no longer used need no
// memory.
func TestInFlight_CallsExpire(t *testing.T) {
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		r := newInFlightRig(t, 1)
		r.request("a", lane, 1, "f/d")
		calls := r.firstBucket().key + ":calls"
		if got, want := r.redis.TTL(calls), 2*10*time.Second; got != want {
			t.Errorf("expiry of the calls in flight of %s, with a lease of 10s: got %v, want %v", lane, got, want)
		}
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

// An in-flight slot is not given to a call long before the call can be made.
func TestInFlight_IsNotTakenLongBeforeTheCall(t *testing.T) {
	for before, want := range map[time.Duration]int{25 * ms: 0, 15 * ms: 1} {
		r := newInFlightRig(t, 1)
		r.end(r.request("a", schemas.High, 1, "f/slow")...)
		r.at = r.at.Add(time.Minute + 50*ms - before) // the minimum interval includes the lifetime of a permit and the jitter
		if got := len(r.request("a", schemas.High, 1, "f/slow")); got != want {
			t.Errorf("slots %v before the end of the minimum interval: got %d, want %d", before, got, want)
		}
	}
}

// A process that has not called Redis for a second, for example because it crashed, loses its turn.
func TestInFlight_SilentProcessLosesItsTurn(t *testing.T) {
	for after, want := range map[time.Duration]int{990 * ms: 0, 1010 * ms: 1} {
		r := newInFlightRig(t, 1)
		held := r.request("holder", schemas.High, 1, "f/d")
		r.request("a", schemas.Low, 1, "f/d")
		r.at = r.at.Add(after)
		r.end(held...)
		if got := len(r.request("b", schemas.Low, 1, "f/d")); got != want {
			t.Errorf("slots of process b, %v after the last call of process a: got %d, want %d", after, got, want)
		}
	}
}

// After a loss of state, calls from before the loss can be in flight for the length of a lease.
func TestInFlight_WaitsALeaseAfterALoss(t *testing.T) {
	for after, want := range map[time.Duration]int{9970 * ms: 0, 9990 * ms: 1} {
		r := newInFlightRig(t, 1)
		r.redis.FlushAll()
		r.request("a", schemas.High, 1, "f/d") // detects the loss
		r.at = r.at.Add(after)
		if got := len(r.request("a", schemas.High, 1, "f/d")); got != want {
			t.Errorf("slots %v after the loss, with a lease of 10s: got %d, want %d", after, got, want)
		}
	}
}
