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
	if p.slot.candidate == nil {
		return ""
	}
	return p.slot.candidate.credential
}

// IsProbe reports whether the call probes something that Halt has stopped.
func (p *Permit) IsProbe() bool { return p.slot.probe }

// ReportEnd is told how the call ended that the permit was spent on, as soon as that is known:
// the status of its answer, 0 for none, and what the answer tells of the policies. Told
// again it changes nothing.
func (p *Permit) ReportEnd(status int, notices []announced.Notice) {
	if p.slot.candidate == nil {
		return
	}
	l := p.limiter
	l.mu.Lock()
	if p.endReported {
		l.mu.Unlock()
		return // what is given back twice would be a call too many
	}
	p.endReported = true
	p.slot.learnResource(l, notices)
	read := l.clock.at(time.Now())
	for _, c := range p.slot.candidate.costs {
		policy := l.quota.scoped[c.policyIndex].policy
		i := slices.IndexFunc(notices, func(n announced.Notice) bool { return n.Policy == policy.Name })
		n := announced.Notice{Limit: announced.Unknown, Remaining: announced.Unknown, Cost: announced.Unknown, Reset: -1}
		if i >= 0 {
			n = notices[i]
		}
		l.reportToBucket(p.slot, c, policy, status, n, read)
	}
	l.retryQueuesWithRoom(p.slot.candidate)
	l.mu.Unlock()
	l.wake()
}

// retryQueuesWithRoom has those ask at once who are charged to a bucket in which a call's end may have
// made room. The others would only be refused again, in front of who might be served. The
// caller holds l.mu.
func (l *Limiter) retryQueuesWithRoom(w *candidate) {
	kept := map[string]bool{}
	for _, c := range w.costs {
		switch l.quota.scoped[c.policyIndex].kind {
		case concurrencyKind, reportedKind, logKind, leakyBucketKind:
			kept[c.key] = true
		case minIntervalKind, breakerKind:
		}
	}
	for _, q := range l.queues {
		if q.key != nil && q.key.costsAny(kept) {
			q.back = time.Time{}
		}
	}
}

func (c *queueKey) costsAny(keys map[string]bool) bool {
	return slices.ContainsFunc(c.candidates, func(w *candidate) bool {
		return slices.ContainsFunc(w.costs, func(c bucketCost) bool { return keys[c.key] })
	})
}

// retryAllQueues has every class ask at once: there may be room for any. The caller holds l.mu.
func (l *Limiter) retryAllQueues() {
	for _, q := range l.queues {
		if q.key != nil {
			q.back = time.Time{}
		}
	}
}

// learnResource notes by which name the upstream knows what the call was charged to. The caller
// holds l.mu.
func (s slot) learnResource(l *Limiter, notices []announced.Notice) {
	for _, n := range notices {
		if endpoint := s.candidate.call.Endpoint; n.Resource != "" && l.resources[endpoint] != n.Resource && l.scopesBy("resource") {
			l.setResource(endpoint, n.Resource)
			l.newResources = append(l.newResources, endpoint, n.Resource)
		}
	}
}

func (l *Limiter) scopesBy(name string) bool {
	return slices.ContainsFunc(l.quota.scoped, func(s scopedPolicy) bool { return slices.Contains(s.scope.names, name) })
}

// actualCost returns what a call of that status really cost, estimated at so many units.
func (p Policy) actualCost(units int64, status int, n announced.Notice) int64 {
	switch {
	case slices.Contains(p.FreeStatuses, status):
		return 0
	case len(p.CountedStatuses) > 0 && status != 0 && !slices.Contains(p.CountedStatuses, status):
		return 0
	case n.Cost != announced.Unknown:
		return n.Cost
	}
	return units
}

// reportToBucket tells one bucket how a call has ended. The caller holds l.mu.
func (l *Limiter) reportToBucket(s slot, c bucketCost, policy Policy, status int, n announced.Notice, read int64) {
	used := policy.actualCost(int64(c.units), status, n)
	switch l.quota.scoped[c.policyIndex].kind {
	case concurrencyKind:
		l.addBucketEvent(c.bucket, 'c', c.ticket(s))
	case reportedKind:
		how, left, till := 1, int64(-1), int64(0)
		told := c.bucket
		switch {
		case n.Remaining != announced.Unknown:
			how, left = 2, n.Remaining
			if n.Reset >= 0 {
				till = read + (n.Reset + n.Slack).Microseconds()
			}
			// The answer may name another budget than the one that was thought of.
			if of := l.bucketOf(c.policyIndex, s.candidate.call, s.candidate.credential); of.key != c.key {
				told = of
				l.addBucketEvent(c.bucket, 'n', fmt.Sprintf("%s 0 0 %d -1 0 0", c.ticket(s), s.at))
			}
		case used == 0:
			how = 0
		case status >= 200 && status < 400 || status == 404:
			how = 3
		}
		l.addBucketEvent(told, 'n', fmt.Sprintf("%s %d %d %d %d %d %d", c.ticket(s), how, used, s.at, left, till, n.Slack.Microseconds()))
	case leakyBucketKind:
		if back := int64(c.units) - used; back != 0 {
			at := s.at
			if policy.Restore > 0 || len(policy.CountedStatuses) > 0 { // it is given back when the answer is made
				at = 0
			}
			l.addBucketEvent(c.bucket, 'g', fmt.Sprintf("%d %d", back, at))
		}
		if policy.Reported && n.Remaining != announced.Unknown {
			l.addBucketEvent(c.bucket, 'l', fmt.Sprintf("%d %d", n.Remaining, s.at))
		}
	case logKind:
		if back := int64(c.units) - used; back != 0 {
			l.addBucketEvent(c.bucket, 'w', fmt.Sprintf("%d %d", s.at, back))
		}
	case minIntervalKind, breakerKind:
	}
}

// ticket names a call under way in a bucket.
func (c bucketCost) ticket(s slot) string { return s.ticket + ":" + strconv.Itoa(c.units) }

// addBucketEvent notes what has happened to a bucket, for the next call to Redis. The caller holds
// l.mu.
func (l *Limiter) addBucketEvent(b *bucket, what byte, rest string) {
	l.bucketEvents = append(l.bucketEvents, bucketEvent{b, what, rest})
}

// refundBuckets takes back a slot of which nothing was sent from the buckets it was charged to.
// The caller holds l.mu.
func (l *Limiter) refundBuckets(s slot) {
	for _, c := range s.candidate.costs {
		at := strconv.FormatInt(s.at, 10)
		switch l.quota.scoped[c.policyIndex].kind {
		case concurrencyKind:
			l.addBucketEvent(c.bucket, 'c', c.ticket(s))
		case reportedKind:
			l.addBucketEvent(c.bucket, 'n', fmt.Sprintf("%s 0 0 %s -1 0 0", c.ticket(s), at))
		case leakyBucketKind:
			l.addBucketEvent(c.bucket, 'g', fmt.Sprintf("%d %s", c.units, at))
		case logKind:
			l.addBucketEvent(c.bucket, 'w', fmt.Sprintf("%s %d", at, c.units))
		case breakerKind:
			if s.probe {
				l.addBucketEvent(c.bucket, 'u', at)
			}
		case minIntervalKind: // time that has passed makes no room
		}
	}
}

// OpenBreaker stops, for all processes, the calls that share with this one what is named (a name
// in Config.Halts), because of how it was answered: all but one that probes after first,
// and then after pauses that double up to most, until one is answered well. first 0: the
// upstream did not say for how long. What the source can't halt alone is halted whole.
func (p *Permit) OpenScopeBreaker(what string, first, most time.Duration) {
	l := p.limiter
	l.mu.Lock()
	if first <= 0 {
		first = l.quota.initialBackoff()
	}
	var halted *bucket
	if p.slot.candidate != nil {
		for _, c := range p.slot.candidate.costs {
			if s := l.quota.scoped[c.policyIndex]; s.kind == breakerKind && s.policy.Name == what+" breaker" {
				halted = c.bucket
			}
		}
	}
	if halted == nil {
		l.mu.Unlock()
		l.BackOff(first, p.spent)
		return
	}
	l.addBucketEvent(halted, 'h', fmt.Sprintf("%d %d %d", first.Microseconds(), max(first, most).Microseconds(), max(0, l.clock.at(p.spent))))
	l.rememberOpenBreaker(halted)
	for _, q := range l.queues {
		q.slots = slices.DeleteFunc(q.slots, func(s slot) bool {
			gone := s.candidate != nil && slices.ContainsFunc(s.candidate.costs, func(c bucketCost) bool { return c.key == halted.key })
			if gone {
				l.refund(s)
			}
			return gone
		})
	}
	l.mu.Unlock()
	l.metrics.backoffs.Inc()
	l.wake()
}

// maxOpenBreakers bounds the halts that a process remembers: of those that it has forgotten it
// tells only by their probes.
const maxOpenBreakers = 1000

func (l *Limiter) rememberOpenBreaker(b *bucket) {
	if len(l.openBreakers) >= maxOpenBreakers {
		clear(l.openBreakers)
	}
	l.openBreakers[b.key] = true
}

// ReportSuccess is told of every call that was answered well: it ends what was halted before it
// was sent.
func (p *Permit) ReportSuccess() {
	if p.slot.candidate == nil {
		return
	}
	l := p.limiter
	l.mu.Lock()
	told := false
	for _, c := range p.slot.candidate.costs {
		if l.quota.scoped[c.policyIndex].kind == breakerKind && (p.slot.probe || l.openBreakers[c.key]) {
			l.addBucketEvent(c.bucket, 'o', strconv.FormatInt(max(0, l.clock.at(p.spent)), 10))
			delete(l.openBreakers, c.key)
			told = true
		}
	}
	if told {
		l.retryAllQueues()
	}
	l.mu.Unlock()
	if told {
		l.wake()
	}
}

// CloseCredentialBreaker ends the halt of a credential, which was changed.
func (l *Limiter) CloseCredentialBreaker(credential string) {
	l.mu.Lock()
	for n, s := range l.quota.scoped {
		if s.kind == breakerKind && slices.Equal(s.scope.names, []string{"credential"}) {
			l.addBucketEvent(l.bucketOf(n, Call{}, credential), 'o', "0")
		}
	}
	l.retryAllQueues()
	l.mu.Unlock()
	l.wake()
}
