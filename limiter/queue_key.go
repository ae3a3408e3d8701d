package limiter

import (
	"fmt"
	"slices"
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

// bucketCost is the cost of a call in one bucket.
type bucketCost struct {
	*bucket
	units int
}

// bucket is the state of one policy, or of one scope breaker, for one value of its scope.
type bucket struct {
	policyIndex int    // index in Quota.scoped
	name        string // policy and value of the scope
	value       string // value of the scope
	key         string // Redis key
}

// bucketKey returns the Redis key of a bucket. Concurrency buckets have a key prefix of their own,
// because they are Redis hashes. All other buckets are strings.
func bucketKey(source string, k kind, name string) string {
	if k == concurrencyKind {
		return "quota:{" + source + "}:p:" + name
	}
	return "quota:{" + source + "}:b:" + name
}

// bucketOf returns the bucket of a scoped policy for a call that uses the credential.
func (l *Limiter) bucketOf(n int, c Call, credential string) *bucket {
	s := l.quota.scoped[n]
	if resource, known := l.resources[c.Endpoint]; known {
		c.Resource = resource
	}
	value := s.scope.fill(func(name string) string { return c.value(name, credential) })
	name := s.policy.Name + ":" + value
	return &bucket{policyIndex: n, name: name, value: value, key: bucketKey(l.source, s.kind, name)}
}

// candidateFor returns the costs of a call that uses the credential. The caller holds l.mu.
func (l *Limiter) candidateFor(c Call, credential string) *candidate {
	w := &candidate{call: c, credential: credential}
	for n, s := range l.quota.scoped {
		if s.policy.Match.fits(c) {
			w.costs = append(w.costs, bucketCost{l.bucketOf(n, c, credential), s.policy.cost(c)})
		}
	}
	return w
}

// queueFor returns the queue of a call. Sources without buckets have one queue per lane. Other
// sources have one queue for each combination of lane, costs and list of credentials. The caller
// holds l.mu.
func (l *Limiter) queueFor(lane schemas.Lane, c Call) *queue {
	if len(l.quota.scoped) == 0 {
		if lane == schemas.High {
			return &l.high
		}
		return &l.low
	}
	credentials := c.Credentials
	if len(credentials) == 0 {
		credentials = []string{""}
	}
	of := &queueKey{lane: lane}
	var id strings.Builder
	id.WriteString(string(lane))
	for _, credential := range credentials {
		w := l.candidateFor(c, credential)
		of.candidates = append(of.candidates, w)
		for _, charge := range w.costs {
			fmt.Fprintf(&id, " %s=%d", charge.name, charge.units)
		}
		fmt.Fprintf(&id, " %q", credential)
	}
	if l.scopesBy("resource") { // a response can later rename the budget of one endpoint only, so each endpoint has its own queues
		fmt.Fprintf(&id, " @%q", c.Endpoint)
	}
	if q := l.queueByKey[id.String()]; q != nil {
		return q
	}
	q := &queue{lane: lane, key: of, keyText: id.String()}
	l.queueByKey[q.keyText] = q
	l.queues = append(l.queues, q)
	return q
}

// removeEmptyQueues deletes the queues without waiters and slots. The caller holds l.mu.
func (l *Limiter) removeEmptyQueues() {
	if len(l.queues) == 2 {
		return
	}
	l.queues = slices.DeleteFunc(l.queues, func(q *queue) bool {
		empty := q.key != nil && q.length == 0 && len(q.slots) == 0
		if empty {
			delete(l.queueByKey, q.keyText)
			l.laneTotals(q.lane).add(q)
		}
		return empty
	})
}

// liveQueue returns the queue in l.queues with the key of q. If removeEmptyQueues has deleted q,
// this can be a newer queue with the same key. If l.queues has no queue with this key, liveQueue
// inserts q again. The caller holds l.mu.
func (l *Limiter) liveQueue(q *queue) *queue {
	if q.key == nil {
		return q
	}
	now, stands := l.queueByKey[q.keyText]
	if !stands {
		now = q
		l.queueByKey[q.keyText] = q
		l.queues = append(l.queues, q)
	}
	return now
}

// laneTotals returns the lane's permanent queue. Deleted queues of the lane add their counts of
// granted and rejected slots to it.
func (l *Limiter) laneTotals(lane schemas.Lane) *queue {
	if lane == schemas.High {
		return &l.high
	}
	return &l.low
}

func (q *queue) add(other *queue) {
	q.used, q.rejected = q.used+other.used, q.rejected+other.rejected
	other.used, other.rejected = 0, 0
}

// waiting returns the number of waiters in all queues. The caller holds l.mu.
func (l *Limiter) waiting() int {
	n := 0
	for _, q := range l.queues {
		n += q.length
	}
	return n
}

// used returns the number of slots granted to this process. The caller holds l.mu.
func (l *Limiter) used() (n int64) {
	for _, q := range l.queues {
		n += q.used
	}
	return n
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

// scopeArgs is the demand of the queues, encoded for the script.
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

// queueGrant is the grant of one queue.
type queueGrant struct {
	slots   []queueSlot
	back    int64 // us until the next call to Redis for the missing slots
	refusal refusal
}

type queueSlot struct {
	wait      int64 // time until the slot in us, from the time (Redis' clock) of the reply
	candidate int   // index in queueKey.candidates
	probe     bool  // the call probes an open breaker
	number    int   // last part of the call's ticket
}

// bucketState is a bucket's state as the script returned it.
type bucketState struct {
	remaining, inFlight, until int64
}

// decodeScopes decodes the script's reply to a demand with queues or bucket events.
func decodeScopes(reply []int64, d demand, of scopeArgs) (grant, error) {
	bad := fmt.Errorf("limiter_acquire returned a malformed reply: %v", reply)
	if len(reply) < 3 {
		return grant{}, bad
	}
	g := grant{now: reply[0], used: reply[1], refusalHigh: refusal(reply[2]), refusalLow: refusal(reply[2]), states: map[*bucket]bucketState{}}
	rest, number := reply[3:], 0
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
			granted.slots = append(granted.slots, queueSlot{wait: rest[0], candidate: int(rest[1]) - 1, probe: rest[2] != 0, number: number})
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
