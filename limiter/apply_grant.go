package limiter

import (
	"strconv"
	"time"
)

// answer is a grant, the demand that it answers, and the local times before and after the call to
// Redis. Redis read its clock (grant.now) between these two times.
type answer struct {
	grant
	demand       demand
	before, then time.Time
}

// applyGrant adds the granted slots. Redis granted each slot for the time `wait` after it had read
// its clock. It read its clock between the local times a.before and a.then. The slot can therefore
// be used from a.then + wait until a.before + wait + permitLife.
func (al *allocator) applyGrant(a answer) {
	if ahead := al.clock.read(a.before, a.then, a.now, a.birth); ahead > 0 {
		// Redis' clock was set forward. Slots that were granted before and after this step can be
		// closer together in real time than Redis assumes. So the state begins again with a quiet
		// period.
		al.log.Warn("redis clock was set forward; no permits are granted during the quiet period", "by", ahead)
		al.pending.add(stepEvent(a.now))
		for _, q := range al.queues.all {
			q.slots = nil
		}
		return
	}
	al.applyBreakerState(a)
	al.applyBackoffState(a)
	al.buckets.note(a)
	if al.active.quota.day != nil && a.demand.wantsSlots() && !al.active.stopped && a.refusalHigh != refusedByDayCount && a.refusalLow != refusedByDayCount {
		at := time.UnixMicro(a.now)
		al.day.counted = Count{DayEnd: al.active.quota.dayEnd(at), Calls: a.used, At: at}
	}
	if al.pending.pause || al.active.stopped {
		for _, wait := range a.high {
			al.refund(a.laneSlot(wait, a.refusalHigh))
		}
		for _, wait := range a.low {
			al.refund(a.laneSlot(wait, a.refusalLow))
		}
		for i, c := range a.queues {
			for _, s := range c.slots {
				al.refund(a.slot(i, s))
			}
		}
		return // a backoff or an emergency stop began during this call to Redis, so the granted slots are refunded
	}
	for _, side := range []struct {
		q         *queue
		waits     []time.Duration
		back      time.Duration
		refusal   refusal
		requested int
	}{{al.queues.high, a.high, a.backHigh, a.refusalHigh, a.demand.high}, {al.queues.low, a.low, a.backLow, a.refusalLow, a.demand.low}} {
		q := side.q
		for _, wait := range side.waits {
			al.queues.reserve(q, a.laneSlot(wait, side.refusal))
		}
		q.used += int64(len(side.waits))
		if side.requested > 0 {
			q.refusal = side.refusal
		}
		if side.back > 0 {
			q.back = a.before.Add(side.back)
			q.rejected += int64(side.requested - len(side.waits))
			al.metrics.rejected[q.lane].Add(float64(side.requested - len(side.waits)))
		}
		if side.refusal == refusedByDayCount {
			al.day.request()
		}
	}
	for i, c := range a.queues {
		al.applyQueueGrant(a, i, c)
	}
}

// applyBreakerState applies the breaker state that Redis returns with every reply.
func (al *allocator) applyBreakerState(a answer) {
	said := func(w refusal) bool { return a.refusalHigh == w || a.refusalLow == w }
	stop := said(refusedByBreaker)
	if stop == al.breaker.open.Load() || (!stop && (said(refusedByStop) || said(refusedByDayCount))) {
		return // the breaker's state is unchanged, or the reply does not show it, because it names an emergency stop or a missing day count
	}
	al.breaker.set(stop)
	if stop {
		al.metrics.breakerOpen.Set(1)
		al.releaseSlots()
		al.log.Warn("circuit breaker opened; calls stop, except single probes")
		return
	}
	al.metrics.breakerOpen.Set(0)
	al.queues.retryRejected(a.then)
	al.log.Info("circuit breaker closed; calls resume")
}

// applyBackoffState applies the state of a backoff that Redis returns with a reply. The reply does not
// show this state while a breaker is open, an emergency stop is in force or the day's count is missing.
func (al *allocator) applyBackoffState(a answer) {
	said := func(w refusal) bool { return a.refusalHigh == w || a.refusalLow == w }
	switch {
	case said(refusedByBackoff):
		al.backingOff = true
	case al.backingOff && !said(refusedByBreaker) && !said(refusedByStop) && !said(refusedByDayCount):
		al.backingOff = false
		al.queues.retryRejected(a.then)
	}
}

// laneSlot returns a slot that was granted to a lane, with local times. The parameter `why` is the
// reason that the reply gives for the lane's rejected slots. If that reason is a backoff or a
// breaker, the granted slot is a probe of the source.
func (a answer) laneSlot(wait time.Duration, why refusal) slot {
	return slot{
		notBefore: a.then.Add(wait), notAfter: a.before.Add(wait + permitLife), at: a.now + wait.Microseconds(),
		sourceProbe: why == refusedByBackoff || why == refusedByBreaker,
	}
}

// slot returns the slot `s` with local times. `s` was granted to the i-th queue of the demand.
func (a answer) slot(i int, s queueSlot) slot {
	wait := micros(s.wait)
	return slot{
		notBefore: a.then.Add(wait), notAfter: a.before.Add(wait + permitLife), at: a.now + s.wait,
		candidate: a.demand.queues[i].q.key.candidates[s.candidate], ticket: a.demand.tickets + strconv.Itoa(s.number),
		probe: s.probes&probesScope != 0, sourceProbe: s.probes&probesSource != 0,
	}
}

// applyQueueGrant adds the slots granted to one queue.
func (al *allocator) applyQueueGrant(a answer, i int, c queueGrant) {
	q, n := a.demand.queues[i].q, a.demand.queues[i].n
	if al.queues.byKey[q.keyText] == nil && len(c.slots) == 0 {
		return // all waiters of this queue have given up
	}
	q = al.queues.live(q)
	for _, s := range c.slots {
		al.queues.reserve(q, a.slot(i, s))
	}
	q.used += int64(len(c.slots))
	q.refusal = c.refusal
	if c.back > 0 {
		q.back = a.before.Add(micros(c.back))
		q.rejected += int64(n - len(c.slots))
		al.metrics.rejected[q.lane].Add(float64(n - len(c.slots)))
	}
	if c.refusal == refusedByDayCount {
		al.day.request()
	}
}
