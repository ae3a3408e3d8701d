package limiter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// queueKey is what calls have in common that are charged alike: they wait in one line.
type queueKey struct {
	lane       schemas.Lane
	candidates []*candidate
}

// candidate is one of the ways in which a call can be made: with one of the credentials.
type candidate struct {
	call       Call
	credential string
	costs      []bucketCost
}

// bucketCost is what a call costs one bucket.
type bucketCost struct {
	*bucket
	units int
}

// bucket is one policy for one value of its scope, or what is halted alone for one.
type bucket struct {
	policyIndex int    // in Quota.scoped
	name        string // of the policy and the value
	value       string // the filled scope
	key         string // in Redis
}

// bucketKey names a bucket in Redis. Places are kept in a hash, which no other kind could read.
func bucketKey(source string, k kind, name string) string {
	if k == concurrencyKind {
		return "quota:{" + source + "}:p:" + name
	}
	return "quota:{" + source + "}:b:" + name
}

// bucketOf returns the bucket of a section that a call is charged to, made with the
// credential.
func (l *Limiter) bucketOf(n int, c Call, credential string) *bucket {
	s := l.quota.scoped[n]
	if resource, known := l.resources[c.Endpoint]; known {
		c.Resource = resource
	}
	value := s.scope.fill(func(name string) string { return c.value(name, credential) })
	name := s.policy.Name + ":" + value
	return &bucket{policyIndex: n, name: name, value: value, key: bucketKey(l.source, s.kind, name)}
}

// candidateFor returns what a call is charged that is made with the credential. The caller holds
// l.mu.
func (l *Limiter) candidateFor(c Call, credential string) *candidate {
	w := &candidate{call: c, credential: credential}
	for n, s := range l.quota.scoped {
		if s.policy.Match.fits(c) {
			w.costs = append(w.costs, bucketCost{l.bucketOf(n, c, credential), s.policy.cost(c)})
		}
	}
	return w
}

// queueFor returns where a call waits: with all of its lane if the source has no buckets, or
// with those that are charged as it is. The caller holds l.mu.
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
	if l.scopesBy("resource") { // its name may change for one endpoint alone
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

// removeEmptyQueues forgets the lines in which nobody waits any more. The caller holds l.mu.
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

// liveQueue returns the line of a class as it stands now: it may have been forgotten, or
// another one have come in its place. The caller holds l.mu.
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

// laneTotals is the line in which the lane's counts are kept.
func (l *Limiter) laneTotals(lane schemas.Lane) *queue {
	if lane == schemas.High {
		return &l.high
	}
	return &l.low
}

func (q *queue) add(other *queue) {
	q.used, q.refused = q.used+other.used, q.refused+other.refused
	other.used, other.refused = 0, 0
}

// waiting returns how many wait. The caller holds l.mu.
func (l *Limiter) waiting() int {
	n := 0
	for _, q := range l.queues {
		n += q.length
	}
	return n
}

// used is how many calls were made here. The caller holds l.mu.
func (l *Limiter) used() (n int64) {
	for _, q := range l.queues {
		n += q.used
	}
	return n
}

const (
	// maxQueuesPerCall bounds the classes of one call to Redis, and classCallsMost what is asked
	// for each: the script's time grows with both.
	maxQueuesPerCall = 48
	maxSlotsPerQueue = 200
)

// queueDemand is what a call to Redis asks for a class.
type queueDemand struct {
	q *queue
	n int
}

// bucketEvent is what has happened to a bucket: a word before and words after its number.
type bucketEvent struct {
	bucket *bucket
	kind   byte
	args   string
}

// retryable reports whether it may be told twice: what gives back may not, and what takes more
// must not be forgotten.
func (h bucketEvent) retryable() bool {
	switch h.kind {
	case 'g':
		return strings.HasPrefix(h.args, "-")
	case 'w':
		return strings.Contains(h.args, " -")
	}
	return h.kind != 'u'
}

// scopeArgs is the demand of the classes as the script takes it.
type scopeArgs struct {
	keys                    []string
	buckets, events, queues string
	bucketList              []*bucket
}

// encodeScopes returns what the script is asked and told of buckets.
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
		happened.WriteString(string(h.kind) + " " + number(h.bucket) + " " + h.args + " ")
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

// queueGrant is what was granted to a class.
type queueGrant struct {
	slots   []queueSlot
	back    int64 // in us, to come back for the others
	refusal refusal
}

type queueSlot struct {
	wait      int64 // in us
	candidate int   // of the class' ways
	probe     bool  // something that is halted
	number    int   // of its ticket
}

// bucketState is what the script said of a bucket last.
type bucketState struct {
	remaining, inFlight, until int64
}

// decodeScopes reads the script's answer to a demand of classes.
func decodeScopes(reply []int64, d demand, of scopeArgs) (grant, error) {
	bad := fmt.Errorf("limiter_acquire returned %v, which does not add up", reply)
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
