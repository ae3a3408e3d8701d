package limiter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// class is what calls have in common that are charged alike: they wait in one line.
type class struct {
	lane schemas.Lane
	ways []*way
}

// way is one of the ways in which a call can be made: with one of the credentials.
type way struct {
	call       Call
	credential string
	charges    []charge
}

// charge is what a call costs one bucket.
type charge struct {
	*bucket
	units int
}

// bucket is one policy for one value of its scope, or what is halted alone for one.
type bucket struct {
	section int    // in Quota.scoped
	name    string // of the policy and the value
	value   string // the filled scope
	key     string // in Redis
}

// bucketKey names a bucket in Redis. Places are kept in a hash, which no other kind could read.
func bucketKey(source string, k kind, name string) string {
	if k == placesKind {
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
	return &bucket{section: n, name: name, value: value, key: bucketKey(l.source, s.kind, name)}
}

// wayOf returns what a call is charged that is made with the credential. The caller holds
// l.mu.
func (l *Limiter) wayOf(c Call, credential string) *way {
	w := &way{call: c, credential: credential}
	for n, s := range l.quota.scoped {
		if s.policy.Match.fits(c) {
			w.charges = append(w.charges, charge{l.bucketOf(n, c, credential), s.policy.cost(c)})
		}
	}
	return w
}

// line returns where a call waits: with all of its lane if the source has no buckets, or
// with those that are charged as it is. The caller holds l.mu.
func (l *Limiter) line(lane schemas.Lane, c Call) *queue {
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
	of := &class{lane: lane}
	var id strings.Builder
	id.WriteString(string(lane))
	for _, credential := range credentials {
		w := l.wayOf(c, credential)
		of.ways = append(of.ways, w)
		for _, charge := range w.charges {
			fmt.Fprintf(&id, " %s=%d", charge.name, charge.units)
		}
		fmt.Fprintf(&id, " %q", credential)
	}
	if l.scopesBy("resource") { // its name may change for one endpoint alone
		fmt.Fprintf(&id, " @%q", c.Endpoint)
	}
	if q := l.classes[id.String()]; q != nil {
		return q
	}
	q := &queue{lane: lane, class: of, id: id.String()}
	l.classes[q.id] = q
	l.lines = append(l.lines, q)
	return q
}

// tidy forgets the lines in which nobody waits any more. The caller holds l.mu.
func (l *Limiter) tidy() {
	if len(l.lines) == 2 {
		return
	}
	l.lines = slices.DeleteFunc(l.lines, func(q *queue) bool {
		empty := q.class != nil && q.length == 0 && len(q.slots) == 0
		if empty {
			delete(l.classes, q.id)
			l.total(q.lane).add(q)
		}
		return empty
	})
}

// standing returns the line of a class as it stands now: it may have been forgotten, or
// another one have come in its place. The caller holds l.mu.
func (l *Limiter) standing(q *queue) *queue {
	if q.class == nil {
		return q
	}
	now, stands := l.classes[q.id]
	if !stands {
		now = q
		l.classes[q.id] = q
		l.lines = append(l.lines, q)
	}
	return now
}

// total is the line in which the lane's counts are kept.
func (l *Limiter) total(lane schemas.Lane) *queue {
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
	for _, q := range l.lines {
		n += q.length
	}
	return n
}

// used is how many calls were made here. The caller holds l.mu.
func (l *Limiter) used() (n int64) {
	for _, q := range l.lines {
		n += q.used
	}
	return n
}

const (
	// classesMost bounds the classes of one call to Redis, and classCallsMost what is asked
	// for each: the script's time grows with both.
	classesMost    = 48
	classCallsMost = 200
)

// classDemand is what a call to Redis asks for a class.
type classDemand struct {
	q *queue
	n int
}

// happening is what has happened to a bucket: a word before and words after its number.
type happening struct {
	bucket *bucket
	what   byte
	rest   string
}

// again reports whether it may be told twice: what gives back may not, and what takes more
// must not be forgotten.
func (h happening) again() bool {
	switch h.what {
	case 'g':
		return strings.HasPrefix(h.rest, "-")
	case 'w':
		return strings.Contains(h.rest, " -")
	}
	return h.what != 'u'
}

// asked is the demand of the classes as the script takes it.
type asked struct {
	keys                       []string
	buckets, happened, classes string
	all                        []*bucket
}

// scopes returns what the script is asked and told of buckets.
func (d demand) scopes() asked {
	var a asked
	var buckets, happened, classes strings.Builder
	numbers := map[string]int{}
	number := func(b *bucket) string {
		k, known := numbers[b.key]
		if !known {
			k = len(numbers) + 1
			numbers[b.key] = k
			a.keys = append(a.keys, b.key, b.key+":calls")
			a.all = append(a.all, b)
			buckets.WriteString(strconv.Itoa(b.section+1) + " ")
		}
		return strconv.Itoa(k)
	}
	for _, h := range d.buckets {
		happened.WriteString(string(h.what) + " " + number(h.bucket) + " " + h.rest + " ")
	}
	for _, c := range d.classes {
		lane := "1 "
		if c.q.lane == schemas.Low {
			lane = "2 "
		}
		classes.WriteString(lane + strconv.Itoa(c.n) + " " + strconv.Itoa(len(c.q.class.ways)) + " ")
		for _, w := range c.q.class.ways {
			classes.WriteString(strconv.Itoa(len(w.charges)) + " ")
			for _, charge := range w.charges {
				classes.WriteString(number(charge.bucket) + " " + strconv.Itoa(charge.units) + " ")
			}
		}
	}
	a.buckets, a.happened, a.classes = buckets.String(), happened.String(), classes.String()
	return a
}

// classGrant is what was granted to a class.
type classGrant struct {
	slots []classSlot
	back  int64 // in us, to come back for the others
	why   why
}

type classSlot struct {
	wait   int64 // in us
	way    int   // of the class' ways
	probes bool  // something that is halted
	number int   // of its ticket
}

// bucketState is what the script said of a bucket last.
type bucketState struct {
	left, under, until int64
}

// decodeScopes reads the script's answer to a demand of classes.
func decodeScopes(reply []int64, d demand, of asked) (grant, error) {
	bad := fmt.Errorf("limiter_acquire returned %v, which does not add up", reply)
	if len(reply) < 3 {
		return grant{}, bad
	}
	g := grant{now: reply[0], used: reply[1], whyHigh: why(reply[2]), whyLow: why(reply[2]), states: map[*bucket]bucketState{}}
	rest, number := reply[3:], 0
	for _, c := range d.classes {
		if len(rest) < 3 || rest[0] < 0 || int(rest[0]) > c.n || len(rest) < 3+3*int(rest[0]) {
			return grant{}, bad
		}
		granted := classGrant{back: rest[1], why: why(rest[2])}
		n := int(rest[0])
		rest = rest[3:]
		for ; n > 0; n-- {
			number++
			if rest[1] < 1 || int(rest[1]) > len(c.q.class.ways) {
				return grant{}, bad
			}
			granted.slots = append(granted.slots, classSlot{wait: rest[0], way: int(rest[1]) - 1, probes: rest[2] != 0, number: number})
			rest = rest[3:]
		}
		g.classes = append(g.classes, granted)
	}
	if len(rest) != 3*len(of.all) {
		return grant{}, bad
	}
	for i, b := range of.all {
		g.states[b] = bucketState{rest[3*i], rest[3*i+1], rest[3*i+2]}
	}
	return g, nil
}
