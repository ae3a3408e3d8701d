package limiter

import (
	"slices"
	"strconv"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Credential returns the name of the credential that the call must use. It is empty for sources
// without named credentials.
func (p *Permit) Credential() string {
	if p.slot.candidate == nil {
		return ""
	}
	return p.slot.candidate.credential
}

// IsProbe reports whether the call probes an open breaker of one of its scopes.
func (p *Permit) IsProbe() bool { return p.slot.probe }

// IsSourceProbe reports whether the call probes the source after a backoff, or while its breaker is
// open.
func (p *Permit) IsSourceProbe() bool { return p.slot.sourceProbe }

// ReportEnd reports the end of the permit's call: the status of its response (0 for none), and the
// policy values that the response reports. It frees the call's in-flight slots and corrects its
// costs. If the call was a probe of the source (IsSourceProbe) and was answered, ReportEnd calls
// `refused`, and ends the backoff if `refused` returns false. A second call of ReportEnd has no
// effect.
func (p *Permit) ReportEnd(status int, notices []announced.Notice, refused func() bool) {
	resumes := p.slot.sourceProbe && status != 0 && !refused()
	if p.slot.candidate == nil && !resumes {
		return
	}
	l := p.limiter
	l.mu.Lock()
	if p.endReported {
		l.mu.Unlock()
		return // the end was already reported, and a second refund would allow one call too many
	}
	p.endReported = true
	if resumes {
		l.alloc.pending.add(resumeEvent(p.slot.at))
	}
	if p.slot.candidate != nil {
		l.alloc.reportToBuckets(p.slot, status, notices)
	}
	l.mu.Unlock()
	l.wake()
}

// reportToBuckets adds the events that report the end of a call to its buckets.
func (al *allocator) reportToBuckets(s slot, status int, notices []announced.Notice) {
	al.learnResource(s.candidate.call.Endpoint, notices)
	read := al.clock.at(time.Now())
	for _, c := range s.candidate.costs {
		policy := al.active.quota.scoped[c.policyIndex].policy
		i := slices.IndexFunc(notices, func(n announced.Notice) bool { return n.Policy == policy.Name })
		n := announced.Notice{Limit: announced.Unknown, Remaining: announced.Unknown, Cost: announced.Unknown, Reset: -1}
		if i >= 0 {
			n = notices[i]
		}
		al.reportToBucket(s, c, policy, status, n, read)
	}
	al.retryQueuesWithRoom(s.candidate)
}

// retryQueuesWithRoom marks the queues that share a bucket with the ended call for the next call
// to Redis, because that bucket can now have room. The remaining queues would only be rejected
// again and would delay the marked ones.
func (al *allocator) retryQueuesWithRoom(w *candidate) {
	kept := map[string]bool{}
	for _, c := range w.costs {
		switch al.active.quota.scoped[c.policyIndex].kind() {
		case concurrencyKind, reportedKind, unitLogKind, leakyBucketKind:
			kept[c.key] = true
		case minIntervalKind, breakerKind:
		}
	}
	for _, q := range al.queues.all {
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

// learnResource records the names of budgets that the response to a call of the endpoint contains.
func (al *allocator) learnResource(endpoint string, notices []announced.Notice) {
	for _, n := range notices {
		if n.Resource != "" && al.buckets.resources[endpoint] != n.Resource && al.buckets.scopesBy("resource") {
			al.setResource(endpoint, n.Resource)
			al.buckets.newResources = append(al.buckets.newResources, endpoint, n.Resource)
		}
	}
}

// actualCost returns the actual cost of a call in units, given its estimated units, its response
// status, and the values that the response reports.
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

// reportToBucket adds the event that reports the end of a call to one of its buckets.
func (al *allocator) reportToBucket(s slot, c bucketCost, policy Policy, status int, n announced.Notice, read int64) {
	used := policy.actualCost(int64(c.units), status, n)
	switch al.active.quota.scoped[c.policyIndex].kind() {
	case concurrencyKind:
		al.pending.addOfBucket(callEndedEvent(c.bucket, c.ticket(s)))
	case reportedKind:
		report := callReport{outcome: callOutcomeUnknown, units: used, slot: s.at, remaining: -1, slack: n.Slack}
		reported := c.bucket
		switch {
		case n.Remaining != announced.Unknown:
			report.outcome, report.remaining = callReported, n.Remaining
			if n.Reset >= 0 {
				report.until = read + (n.Reset + n.Slack).Microseconds()
			}
			// The response can report a budget other than the one that was charged. Then the
			// charged bucket gets its units back.
			if of := al.buckets.of(c.policyIndex, s.candidate.call, s.candidate.credential); of.key != c.key {
				reported = of
				al.pending.addOfBucket(notSentEvent(c.bucket, c.ticket(s), s.at))
			}
		case used == 0:
			report.outcome = callNotSent
		case status >= 200 && status < 400 || status == 404:
			report.outcome = callAnsweredWithout
		}
		al.pending.addOfBucket(reportEvent(reported, c.ticket(s), report))
	case leakyBucketKind:
		if back := int64(c.units) - used; back != 0 {
			at := s.at
			// For leaky buckets and error budgets, the upstream returns unused units when it responds,
			// not at the slot's time.
			if policy.Restore > 0 || len(policy.CountedStatuses) > 0 {
				at = refundedNow
			}
			al.pending.addOfBucket(bucketRefundEvent(c.bucket, back, at))
		}
		if policy.Reported && n.Remaining != announced.Unknown {
			al.pending.addOfBucket(levelEvent(c.bucket, n.Remaining, s.at))
		}
	case unitLogKind:
		if back := int64(c.units) - used; back != 0 {
			al.pending.addOfBucket(logRefundEvent(c.bucket, s.at, back))
		}
	case minIntervalKind, breakerKind:
	}
}

// ticket returns the text under which the bucket counts the call as in flight.
func (c bucketCost) ticket(s slot) string { return s.ticket + ":" + strconv.Itoa(c.units) }

// OpenScopeBreaker opens the circuit breaker of one of the call's scopes (a name in Config.Breakers)
// for all processes, because of the call's response. Single probes are sent, the first after the pause
// `first`, and then after pauses that double up to `maxPause`, until one succeeds. If `first` is 0,
// the upstream named no time; then the first pause is Config.Backoff. If the scope has no breaker, the
// whole source backs off.
func (p *Permit) OpenScopeBreaker(scope string, first, maxPause time.Duration) {
	l := p.limiter
	l.mu.Lock()
	if first <= 0 {
		first = l.alloc.active.quota.initialBackoff()
	}
	var opened *bucket
	if p.slot.candidate != nil {
		for _, c := range p.slot.candidate.costs {
			if s := l.alloc.active.quota.scoped[c.policyIndex]; s.kind() == breakerKind && s.policy.Name == scope+" breaker" {
				opened = c.bucket
			}
		}
	}
	if opened == nil {
		l.mu.Unlock()
		l.BackOff(first, p.spent)
		return
	}
	l.alloc.pending.addOfBucket(openBreakerEvent(opened, first, max(first, maxPause), max(0, l.alloc.clock.at(p.spent))))
	l.alloc.buckets.rememberOpenBreaker(opened)
	for _, q := range l.alloc.queues.all {
		q.slots = slices.DeleteFunc(q.slots, func(s slot) bool {
			gone := s.candidate != nil && slices.ContainsFunc(s.candidate.costs, func(c bucketCost) bool { return c.key == opened.key })
			if gone {
				l.alloc.refund(s)
			}
			return gone
		})
	}
	l.mu.Unlock()
	l.metrics.backoffs.Inc()
	l.wake()
}

// ReportSuccess closes the scope breakers that opened before this call was sent. It must be
// called for every successful call.
func (p *Permit) ReportSuccess() {
	if p.slot.candidate == nil {
		return
	}
	l := p.limiter
	l.mu.Lock()
	reported := false
	for _, c := range p.slot.candidate.costs {
		if l.alloc.active.quota.scoped[c.policyIndex].kind() == breakerKind && (p.slot.probe || l.alloc.buckets.openBreakers[c.key]) {
			l.alloc.pending.addOfBucket(closeBreakerEvent(c.bucket, max(0, l.alloc.clock.at(p.spent))))
			delete(l.alloc.buckets.openBreakers, c.key)
			reported = true
		}
	}
	if reported {
		l.alloc.queues.retryAll()
	}
	l.mu.Unlock()
	if reported {
		l.wake()
	}
}

// CloseCredentialBreaker closes the breaker of a credential whose secret has changed.
func (l *Limiter) CloseCredentialBreaker(credential string) {
	l.mu.Lock()
	for n, s := range l.alloc.active.quota.scoped {
		if s.kind() == breakerKind && slices.Equal(s.scope.names, []string{"credential"}) {
			l.alloc.pending.addOfBucket(closeBreakerEvent(l.alloc.buckets.of(n, Call{}, credential), 0))
		}
	}
	l.alloc.queues.retryAll()
	l.mu.Unlock()
	l.wake()
}
