package limiter

import (
	"fmt"

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

// encodedBuckets is the argument of limiter_buckets, and the buckets in it.
type encodedBuckets struct {
	text    string   // the encoded bucketsArg
	keys    []string // the Redis keys of the buckets
	buckets []*bucket
}

// bucketsArg is the form in which limiter_buckets takes the queues, their buckets and the bucket events.
// A bucket is named by its number, from 1 on.
type bucketsArg struct {
	Policies []int      `json:"policies"` // for each bucket the number of its policy in quotaTerms, from 1 on
	Events   [][]any    `json:"events"`
	Queues   []queueArg `json:"queues"`
	Tickets  string     `json:"tickets"`
	Process  string     `json:"process"`
	Channel  string     `json:"channel"`
}

type queueArg struct {
	Lane       int        `json:"lane"`
	Calls      int        `json:"calls"`
	Candidates [][][2]int `json:"candidates"` // for each candidate its costs: bucket and units
}

// encodeScopes encodes the queues, their buckets and the bucket events.
func (d demand) encodeScopes(source string) encodedBuckets {
	var a encodedBuckets
	// cjson decodes an empty list as an empty table, but null as an object.
	arg := bucketsArg{Policies: []int{}, Events: make([][]any, 0, len(d.bucketEvents)), Queues: make([]queueArg, 0, len(d.queues)), Tickets: d.tickets, Process: d.process, Channel: wakeUpChannel(source)}
	numbers := map[string]int{}
	number := func(b *bucket) int {
		k, known := numbers[b.key]
		if !known {
			k = len(numbers) + 1
			numbers[b.key] = k
			a.keys = append(a.keys, b.key, b.key+":calls")
			a.buckets = append(a.buckets, b)
			arg.Policies = append(arg.Policies, d.terms.scopedFrom+b.policyIndex+1)
		}
		return k
	}
	for _, e := range d.bucketEvents {
		arg.Events = append(arg.Events, e.list(number(e.bucket)))
	}
	for _, c := range d.queues {
		q := queueArg{Lane: 1, Calls: c.n, Candidates: make([][][2]int, 0, len(c.q.key.candidates))}
		if c.q.lane == schemas.Low {
			q.Lane = 2
		}
		for _, w := range c.q.key.candidates {
			costs := make([][2]int, 0, len(w.costs))
			for _, cost := range w.costs {
				costs = append(costs, [2]int{number(cost.bucket), cost.units})
			}
			q.Candidates = append(q.Candidates, costs)
		}
		arg.Queues = append(arg.Queues, q)
	}
	a.text = encodeJSON(arg)
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
func decodeScopes(reply []int64, d demand, of encodedBuckets) (grant, error) {
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
	if len(rest) != 3*len(of.buckets) {
		return grant{}, bad
	}
	for i, b := range of.buckets {
		g.states[b] = bucketState{rest[3*i], rest[3*i+1], rest[3*i+2]}
	}
	return g, nil
}
