package limiter

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Credential returns the name of the credential that the call is to be made with; empty
// where there is but one.
func (p *Permit) Credential() string {
	if p.slot.way == nil {
		return ""
	}
	return p.slot.way.credential
}

// Probes reports whether the call probes something that Halt has stopped.
func (p *Permit) Probes() bool { return p.slot.probes }

// Ended is told how the call ended that the permit was spent on, as soon as that is known:
// the status of its answer, 0 for none, and what the answer tells of the policies. Told
// again it changes nothing.
func (p *Permit) Ended(status int, notices []announced.Notice) {
	if p.slot.way == nil {
		return
	}
	l := p.limiter
	l.mu.Lock()
	if p.over {
		l.mu.Unlock()
		return // what is given back twice would be a call too many
	}
	p.over = true
	p.slot.learn(l, notices)
	read := l.clock.at(time.Now())
	for _, c := range p.slot.way.charges {
		policy := l.quota.scoped[c.section].policy
		i := slices.IndexFunc(notices, func(n announced.Notice) bool { return n.Policy == policy.Name })
		n := announced.Notice{Limit: announced.Unknown, Remaining: announced.Unknown, Cost: announced.Unknown, Reset: -1}
		if i >= 0 {
			n = notices[i]
		}
		l.settle(p.slot, c, policy, status, n, read)
	}
	l.room(p.slot.way)
	l.mu.Unlock()
	l.wake()
}

// room has those ask at once who are charged to a bucket in which a call's end may have
// made room. The others would only be refused again, in front of who might be served. The
// caller holds l.mu.
func (l *Limiter) room(w *way) {
	kept := map[string]bool{}
	for _, c := range w.charges {
		switch l.quota.scoped[c.section].kind {
		case placesKind, toldKind, logKind, bucketKind:
			kept[c.key] = true
		case gapKind, haltKind:
		}
	}
	for _, q := range l.lines {
		if q.class != nil && q.class.chargedTo(kept) {
			q.back = time.Time{}
		}
	}
}

func (c *class) chargedTo(keys map[string]bool) bool {
	return slices.ContainsFunc(c.ways, func(w *way) bool {
		return slices.ContainsFunc(w.charges, func(c charge) bool { return keys[c.key] })
	})
}

// again has every class ask at once: there may be room for any. The caller holds l.mu.
func (l *Limiter) again() {
	for _, q := range l.lines {
		if q.class != nil {
			q.back = time.Time{}
		}
	}
}

// learn notes by which name the upstream knows what the call was charged to. The caller
// holds l.mu.
func (s slot) learn(l *Limiter, notices []announced.Notice) {
	for _, n := range notices {
		if endpoint := s.way.call.Endpoint; n.Resource != "" && l.resources[endpoint] != n.Resource && l.scopesBy("resource") {
			l.rename(endpoint, n.Resource)
			l.named = append(l.named, endpoint, n.Resource)
		}
	}
}

func (l *Limiter) scopesBy(name string) bool {
	return slices.ContainsFunc(l.quota.scoped, func(s section) bool { return slices.Contains(s.scope.names, name) })
}

// charged returns what a call of that status really cost, estimated at so many units.
func (p Policy) charged(units int64, status int, n announced.Notice) int64 {
	switch {
	case slices.Contains(p.Free, status):
		return 0
	case len(p.Only) > 0 && status != 0 && !slices.Contains(p.Only, status):
		return 0
	case n.Cost != announced.Unknown:
		return n.Cost
	}
	return units
}

// settle tells one bucket how a call has ended. The caller holds l.mu.
func (l *Limiter) settle(s slot, c charge, policy Policy, status int, n announced.Notice, read int64) {
	used := policy.charged(int64(c.units), status, n)
	switch l.quota.scoped[c.section].kind {
	case placesKind:
		l.tellOf(c.bucket, 'c', c.ticket(s))
	case toldKind:
		how, left, till := 1, int64(-1), int64(0)
		told := c.bucket
		switch {
		case n.Remaining != announced.Unknown:
			how, left = 2, n.Remaining
			if n.Reset >= 0 {
				till = read + (n.Reset + n.Slack).Microseconds()
			}
			// The answer may name another budget than the one that was thought of.
			if of := l.bucketOf(c.section, s.way.call, s.way.credential); of.key != c.key {
				told = of
				l.tellOf(c.bucket, 'n', fmt.Sprintf("%s 0 0 %d -1 0 0", c.ticket(s), s.at))
			}
		case used == 0:
			how = 0
		case status >= 200 && status < 400 || status == 404:
			how = 3
		}
		l.tellOf(told, 'n', fmt.Sprintf("%s %d %d %d %d %d %d", c.ticket(s), how, used, s.at, left, till, n.Slack.Microseconds()))
	case bucketKind:
		if back := int64(c.units) - used; back != 0 {
			at := s.at
			if policy.Restore > 0 || len(policy.Only) > 0 { // it is given back when the answer is made
				at = 0
			}
			l.tellOf(c.bucket, 'g', fmt.Sprintf("%d %d", back, at))
		}
		if policy.Learned && n.Remaining != announced.Unknown {
			l.tellOf(c.bucket, 'l', fmt.Sprintf("%d %d", n.Remaining, s.at))
		}
	case logKind:
		if back := int64(c.units) - used; back != 0 {
			l.tellOf(c.bucket, 'w', fmt.Sprintf("%d %d", s.at, back))
		}
	case gapKind, haltKind:
	}
}

// ticket names a call under way in a bucket.
func (c charge) ticket(s slot) string { return s.ticket + ":" + strconv.Itoa(c.units) }

// tellOf notes what has happened to a bucket, for the next call to Redis. The caller holds
// l.mu.
func (l *Limiter) tellOf(b *bucket, what byte, rest string) {
	l.tellScopes = append(l.tellScopes, happening{b, what, rest})
}

// unsent takes back a slot of which nothing was sent from the buckets it was charged to.
// The caller holds l.mu.
func (l *Limiter) unsent(s slot) {
	for _, c := range s.way.charges {
		at := strconv.FormatInt(s.at, 10)
		switch l.quota.scoped[c.section].kind {
		case placesKind:
			l.tellOf(c.bucket, 'c', c.ticket(s))
		case toldKind:
			l.tellOf(c.bucket, 'n', fmt.Sprintf("%s 0 0 %s -1 0 0", c.ticket(s), at))
		case bucketKind:
			l.tellOf(c.bucket, 'g', fmt.Sprintf("%d %s", c.units, at))
		case logKind:
			l.tellOf(c.bucket, 'w', fmt.Sprintf("%s %d", at, c.units))
		case haltKind:
			if s.probes {
				l.tellOf(c.bucket, 'u', at)
			}
		case gapKind: // time that has passed makes no room
		}
	}
}

// Halt stops, for all processes, the calls that share with this one what is named (a name
// in Config.Halts), because of how it was answered: all but one that probes after first,
// and then after pauses that double up to most, until one is answered well. first 0: the
// upstream did not say for how long. What the source can't halt alone is halted whole.
func (p *Permit) Halt(what string, first, most time.Duration) {
	l := p.limiter
	l.mu.Lock()
	if first <= 0 {
		first = l.quota.brake()
	}
	var halted *bucket
	if p.slot.way != nil {
		for _, c := range p.slot.way.charges {
			if s := l.quota.scoped[c.section]; s.kind == haltKind && s.policy.Name == what+" halted" {
				halted = c.bucket
			}
		}
	}
	if halted == nil {
		l.mu.Unlock()
		l.Brake(first, p.spent)
		return
	}
	l.tellOf(halted, 'h', fmt.Sprintf("%d %d %d", first.Microseconds(), max(first, most).Microseconds(), max(0, l.clock.at(p.spent))))
	l.noteHalt(halted)
	for _, q := range l.lines {
		q.slots = slices.DeleteFunc(q.slots, func(s slot) bool {
			gone := s.way != nil && slices.ContainsFunc(s.way.charges, func(c charge) bool { return c.key == halted.key })
			if gone {
				l.refund(s)
			}
			return gone
		})
	}
	l.mu.Unlock()
	l.metrics.brakes.Inc()
	l.wake()
}

// haltedMost bounds the halts that a process remembers: of those that it has forgotten it
// tells only by their probes.
const haltedMost = 1000

func (l *Limiter) noteHalt(b *bucket) {
	if len(l.halted) >= haltedMost {
		clear(l.halted)
	}
	l.halted[b.key] = true
}

// Well is told of every call that was answered well: it ends what was halted before it
// was sent.
func (p *Permit) Well() {
	if p.slot.way == nil {
		return
	}
	l := p.limiter
	l.mu.Lock()
	told := false
	for _, c := range p.slot.way.charges {
		if l.quota.scoped[c.section].kind == haltKind && (p.slot.probes || l.halted[c.key]) {
			l.tellOf(c.bucket, 'o', strconv.FormatInt(max(0, l.clock.at(p.spent)), 10))
			delete(l.halted, c.key)
			told = true
		}
	}
	if told {
		l.again()
	}
	l.mu.Unlock()
	if told {
		l.wake()
	}
}

// Renewed ends the halt of a credential, which was changed.
func (l *Limiter) Renewed(credential string) {
	l.mu.Lock()
	for n, s := range l.quota.scoped {
		if s.kind == haltKind && slices.Equal(s.scope.names, []string{"credential"}) {
			l.tellOf(l.bucketOf(n, Call{}, credential), 'o', "0")
		}
	}
	l.again()
	l.mu.Unlock()
	l.wake()
}
