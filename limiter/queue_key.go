package limiter

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// queueKey identifies a queue. All calls of a queue cost the same in the same buckets.
type queueKey struct {
	lane       schemas.Lane
	candidates []*candidate
}

// candidate is one way to make a call: a credential, and the costs of the call with this
// credential.
type candidate struct {
	call       Call
	credential string
	costs      []bucketCost
}

// bucketCost says how many units a call takes from one bucket.
type bucketCost struct {
	*bucket
	units int
}

const (
	// Limits of one call to Redis. The script's run time grows with the number of queues and with
	// the number of slots of each.
	maxQueuesPerCall = 48
	maxSlotsPerQueue = 200
)

// queueDemand is the number of slots that one call to Redis requests for a queue.
type queueDemand struct {
	q *queue
	n int
}

// scopeArgs are the arguments of the script that concern scopes: the queues with their numbers of
// waiting calls, and the buckets of these queues.
type scopeArgs struct {
	keys                    []string
	buckets, events, queues string
	bucketList              []*bucket
}

// encodeScopes encodes the queues, their buckets and the bucket events.
func (d demand) encodeScopes() scopeArgs {
	var a scopeArgs
	var buckets, happened, classes strings.Builder
	numbers := map[string]int{}
	number := func(b *bucket) string {
		k, known := numbers[b.key]
		if !known {
			k = len(numbers) + 1
			numbers[b.key] = k
			a.keys = append(a.keys, b.key, b.key+":calls")
			a.bucketList = append(a.bucketList, b)
			buckets.WriteString(strconv.Itoa(b.policyIndex+1) + " ")
		}
		return strconv.Itoa(k)
	}
	for _, h := range d.bucketEvents {
		h.encode(&happened, number(h.bucket))
	}
	for _, c := range d.queues {
		lane := "1 "
		if c.q.lane == schemas.Low {
			lane = "2 "
		}
		classes.WriteString(lane + strconv.Itoa(c.n) + " " + strconv.Itoa(len(c.q.key.candidates)) + " ")
		for _, w := range c.q.key.candidates {
			classes.WriteString(strconv.Itoa(len(w.costs)) + " ")
			for _, charge := range w.costs {
				classes.WriteString(number(charge.bucket) + " " + strconv.Itoa(charge.units) + " ")
			}
		}
	}
	a.buckets, a.events, a.queues = buckets.String(), happened.String(), classes.String()
	return a
}

// queueGrant is the script's answer for one queue: the time slots that the queue gets, or why it gets
// none.
type queueGrant struct {
	slots   []queueSlot
	back    int64 // time in µs until the next call to Redis for the slots that were not granted
	refusal refusal
}

type queueSlot struct {
	wait      int64 // time in µs from the time in the reply until the slot
	candidate int   // index of the chosen candidate in queueKey.candidates
	probes    int64 // the bits probesScope and probesSource; 0 means that the call is no probe
	number    int   // last part of the call's ticket
}

// Bits of queueSlot.probes.
const (
	probesScope  = 1 // the call probes an open breaker of one of its scopes
	probesSource = 2 // the call probes the source; see slot.sourceProbe
)

// bucketState is a bucket's state as the script returned it.
type bucketState struct {
	remaining, inFlight, until int64
}

// decodeScopes decodes the script's reply to a demand with queues or bucket events.
func decodeScopes(reply []int64, d demand, of scopeArgs) (grant, error) {
	bad := fmt.Errorf("limiter_acquire returned a malformed reply: %v", reply)
	if len(reply) < 4 {
		return grant{}, bad
	}
	g := grant{now: reply[0], used: reply[1], refusalHigh: refusal(reply[2]), refusalLow: refusal(reply[2]), birth: reply[3], states: map[*bucket]bucketState{}}
	rest, number := reply[4:], 0
	for _, c := range d.queues {
		if len(rest) < 3 || rest[0] < 0 || int(rest[0]) > c.n || len(rest) < 3+3*int(rest[0]) {
			return grant{}, bad
		}
		granted := queueGrant{back: rest[1], refusal: refusal(rest[2])}
		n := int(rest[0])
		rest = rest[3:]
		for ; n > 0; n-- {
			number++
			if rest[1] < 1 || int(rest[1]) > len(c.q.key.candidates) {
				return grant{}, bad
			}
			granted.slots = append(granted.slots, queueSlot{wait: rest[0], candidate: int(rest[1]) - 1, probes: rest[2], number: number})
			rest = rest[3:]
		}
		g.queues = append(g.queues, granted)
	}
	if len(rest) != 3*len(of.bucketList) {
		return grant{}, bad
	}
	for i, b := range of.bucketList {
		g.states[b] = bucketState{rest[3*i], rest[3*i+1], rest[3*i+2]}
	}
	return g, nil
}
