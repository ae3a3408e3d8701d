package limiter

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
)

const (
	// After the first failed call to Redis, the next call is made after firstRetryDelay. After
	// each further failure it is made after retryDelay, so each process makes one call per second
	// while Redis is down.
	firstRetryDelay = 50 * time.Millisecond
	retryDelay      = time.Second
)

// Run grants permits until ctx ends. It returns when its last call to Redis has ended. It does
// not cancel the callers that wait for permits; only their own contexts do that.
func (l *Limiter) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.follow(ctx) })
	wg.Go(func() { l.subscribeWakeUps(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		l.mu.Lock()
		d, next := l.step(now)
		if l.reportDue {
			l.reportDue = false
			wg.Go(l.publishReport)
		}
		switch {
		case l.handover:
			l.handover = false
			wg.Go(l.callRedisUntilServed)
		case !d.needed() || l.calling:
		case l.canCallRedis(now):
			l.calling = true
			wg.Go(l.callRedisUntilServed)
		case now.Before(l.pause):
			next = earliest(next, l.pause)
		} // if unread settings or an unsaved day count prevent a call to Redis, Run wakes up when that changes
		l.mu.Unlock()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.kick:
		case <-timer.C:
		}
	}
}

// canCallRedis reports whether Redis can be called now. The caller holds l.mu.
func (l *Limiter) canCallRedis(now time.Time) bool {
	return !now.Before(l.pause) && !l.dayCountUnsaved && !l.settingsUnread
}

// step gives waiting calls the permits whose time has come. It returns the demand for the next
// call to Redis, and the time `next` at which step must run again at the latest. A zero time means
// that step runs again only after a wake-up. The caller holds l.mu.
func (l *Limiter) step(now time.Time) (d demand, next time.Time) {
	l.removeEmptyQueues()
	for _, q := range l.queues {
		next = earliest(next, l.serveDue(q, now))
		missing := min(q.length-len(q.slots), maxSlotsPerCall)
		switch {
		case missing <= 0 || l.stopped:
			continue
		case now.Before(q.back):
			next = earliest(next, q.back)
			continue
		}
		switch q {
		case &l.high:
			d.high = missing
		case &l.low:
			d.low = missing
		default:
			d.queues = append(d.queues, queueDemand{q, min(missing, maxSlotsPerQueue)})
		}
	}
	if l.breakerOpen.Load() && d.high > 0 && d.low > 0 {
		// Only one lane, chosen at random, requests the probe, so that both lanes get probes. If
		// HIGH always came first, one failing HIGH entity could keep the breaker open. If LOW
		// always came first, it could block the probes when its share of the quota is used up.
		if rand.IntN(2) == 0 { //nolint:gosec // not a secret
			d.high = 0
		} else {
			d.low = 0
		}
	}
	d.queues = l.selectQueues(d.queues)
	d.hasEvents = !l.pending.empty() || l.reportForcesCall
	return d, next
}

// selectQueues picks at most maxQueuesPerCall queues for the next call to Redis. If there are
// more, it picks the queues that were sent to Redis longest ago. The result is sorted by lane,
// HIGH first, and then by the time at which the queue's next waiter arrived. While the circuit
// breaker is open it picks one queue at random, for the probe.
func (l *Limiter) selectQueues(all []queueDemand) []queueDemand {
	if len(all) < 2 {
		return all
	}
	if l.breakerOpen.Load() {
		fresh := slices.DeleteFunc(slices.Clone(all), func(d queueDemand) bool { return d.q.fresh.first == nil })
		if len(fresh) > 0 && rand.IntN(retryShare) > 0 { //nolint:gosec // not a secret
			all = fresh
		}
		return all[rand.IntN(len(all)):][:1] //nolint:gosec // not a secret
	}
	if len(all) > maxQueuesPerCall { // the queues sent longest ago come first, so that repeatedly rejected queues do not starve the others
		slices.SortStableFunc(all, func(a, b queueDemand) int { return cmp.Compare(a.q.lastCall, b.q.lastCall) })
		all = all[:maxQueuesPerCall]
	}
	slices.SortStableFunc(all, func(a, b queueDemand) int {
		if a.q.lane == b.q.lane {
			return a.q.next().since.Compare(b.q.next().since)
		}
		if a.q.lane == schemas.High {
			return -1
		}
		return 1
	})
	return all
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// serveDue hands due slots to waiters and drops expired ones. It returns the time at which the
// next slot is due, or expires if there is no waiter for it. The caller holds l.mu.
func (l *Limiter) serveDue(q *queue, now time.Time) time.Time {
	for len(q.slots) > 0 {
		s := q.slots[0]
		switch {
		case now.After(s.notAfter):
			l.metrics.lapsed.Inc()
			l.refund(s)
		case q.length == 0:
			return s.notAfter.Add(1)
		case now.Before(s.notBefore):
			return s.notBefore
		default:
			p := q.serve()
			p.slot, p.given = s, true
			if p.ready != nil {
				p.ready <- struct{}{}
			}
			l.metrics.waited[q.lane].Observe(now.Sub(p.since).Seconds())
		}
		q.slots = q.slots[1:]
	}
	return time.Time{}
}

// callRedisUntilServed calls Redis until the waiters have slots or Redis has rejected them until
// later.
func (l *Limiter) callRedisUntilServed() {
	for l.callRedis(l.gatherDemand()) {
	}
}

// callRedis makes one call to Redis. It returns true if another call to Redis is needed at once.
// In that case l.calling stays true, and the caller of callRedis must make the second call.
func (l *Limiter) callRedis(d demand) bool {
	l.mu.Lock()
	d.events = l.pending.takeOfSource()
	before := time.Now()
	if before.Sub(l.renewed) > clockTermsInterval {
		l.renewClockTerms(before)
	}
	d.terms = l.terms
	if len(d.queues)+len(l.pending.ofBuckets) > 0 {
		l.calls++
		for _, c := range d.queues {
			c.q.lastCall = l.calls
		}
		d.bucketEvents, d.process = l.pending.takeOfBuckets(), l.name
		d.tickets = fmt.Sprintf("%s.%d.", l.name, l.calls)
	}
	l.mu.Unlock()
	// The call serves many waiters, so it has its own deadline and does not use the context of a
	// single waiter.
	g, err := l.acquireSlots(context.Background(), d)
	then := time.Now()
	l.metrics.calls.Inc()
	l.mu.Lock()
	if err != nil {
		l.fail(d, then, err)
	} else {
		if l.failed > 0 {
			l.log.Info("redis connection restored; permits are granted again")
		}
		l.failed, l.pause = 0, time.Time{}
		l.applyGrant(answer{g, d, before, then})
		// Reports are published only after a successful call to Redis, so that they don't add
		// calls while Redis is down.
		l.reportDue, l.reportWanted, l.reportForcesCall = l.reportDue || l.reportWanted, false, false
	}
	defer l.mu.Unlock()
	more, next := l.step(then)
	l.calling = more.needed() && l.canCallRedis(then)
	if l.reportDue || (!l.calling && (more.needed() || !next.IsZero())) {
		l.wake()
	}
	return l.calling
}

// gatherDemand yields to other goroutines until the demand stops growing. Callers that were just
// served usually call Acquire again at once, and can then share one call to Redis.
func (l *Limiter) gatherDemand() demand {
	for n := -1; ; {
		l.mu.Lock()
		d, _ := l.step(time.Now())
		l.mu.Unlock()
		requested := d.high + d.low
		for _, c := range d.queues {
			requested += c.n
		}
		if requested == n {
			return d
		}
		n = requested
		runtime.Gosched()
	}
}

func (l *Limiter) fail(d demand, now time.Time, err error) {
	l.metrics.failures.Inc()
	l.failed++
	l.pause = now.Add(retryDelay)
	if l.failed == 1 {
		l.pause = now.Add(firstRetryDelay)
	}
	if l.failed == 2 {
		l.log.Error("redis connection lost; no permits are granted, retrying once a second", "err", err)
	}
	l.pending.restore(d)
}

// answer is a grant, the demand that it answers, and the local times before and after the call to
// Redis. Redis read its clock (grant.now) between these two times.
type answer struct {
	grant
	demand       demand
	before, then time.Time
}

// applyGrant adds the granted slots. Redis granted each for the time `wait` after it read its
// clock, which it did between the local times a.before and a.then. So the slot can be used from
// a.then + wait until a.before + wait + permitLife. The caller holds l.mu.
func (l *Limiter) applyGrant(a answer) {
	if ahead := l.clock.read(a.before, a.then, a.now); ahead > 0 {
		// Slots granted before and after the clock step could be closer together in real time
		// than Redis assumes, so the state starts again with a quiet period.
		l.log.Warn("redis clock was set forward; no permits are granted during the quiet period", "by", ahead)
		l.pending.ofSource = append(l.pending.ofSource, stepEvent(a.now))
		for _, q := range l.queues {
			q.slots = nil
		}
		return
	}
	l.applyBreakerState(a)
	l.noteBuckets(a)
	if l.quota.day != nil && a.demand.wantsSlots() && !l.stopped && a.refusalHigh != refusedByDayCount && a.refusalLow != refusedByDayCount {
		at := time.UnixMicro(a.now)
		l.counted = Count{DayEnd: l.quota.dayEnd(at), Calls: a.used, At: at}
	}
	if l.pending.pause || l.stopped {
		for _, wait := range append(a.high, a.low...) {
			l.refund(slot{at: a.now + wait.Microseconds()})
		}
		for i, c := range a.queues {
			for _, s := range c.slots {
				l.refund(a.slot(i, s))
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
	}{{&l.high, a.high, a.backHigh, a.refusalHigh, a.demand.high}, {&l.low, a.low, a.backLow, a.refusalLow, a.demand.low}} {
		q := side.q
		for _, wait := range side.waits {
			q.slots = append(q.slots, slot{notBefore: a.then.Add(wait), notAfter: a.before.Add(wait + permitLife), at: a.now + wait.Microseconds()})
		}
		q.used += int64(len(side.waits))
		if side.requested > 0 {
			q.refusal = side.refusal
		}
		if side.back > 0 {
			q.back = a.before.Add(side.back)
			q.rejected += int64(side.requested - len(side.waits))
			l.metrics.rejected[q.lane].Add(float64(side.requested - len(side.waits)))
		}
		if side.refusal == refusedByDayCount {
			l.requestDayCount()
		}
	}
	for i, c := range a.queues {
		l.applyQueueGrant(a, i, c)
	}
}

// requestDayCount makes the follower send the day's count to Redis.
func (l *Limiter) requestDayCount() {
	select {
	case l.dayCountNeeded <- struct{}{}:
	default:
	}
}

// slot returns the slot s, which was granted to the i-th queue of the demand, with local times.
func (a answer) slot(i int, s queueSlot) slot {
	wait := micros(s.wait)
	return slot{
		notBefore: a.then.Add(wait), notAfter: a.before.Add(wait + permitLife), at: a.now + s.wait,
		candidate: a.demand.queues[i].q.key.candidates[s.candidate], ticket: a.demand.tickets + strconv.Itoa(s.number), probe: s.probe,
	}
}

// applyQueueGrant adds the slots granted to one queue. The caller holds l.mu.
func (l *Limiter) applyQueueGrant(a answer, i int, c queueGrant) {
	q, n := a.demand.queues[i].q, a.demand.queues[i].n
	if l.queueByKey[q.keyText] == nil && len(c.slots) == 0 {
		return // all waiters of this queue have given up
	}
	q = l.liveQueue(q)
	for _, s := range c.slots {
		q.slots = append(q.slots, a.slot(i, s))
	}
	q.used += int64(len(c.slots))
	q.refusal = c.refusal
	if c.back > 0 {
		q.back = a.before.Add(micros(c.back))
		q.rejected += int64(n - len(c.slots))
		l.metrics.rejected[q.lane].Add(float64(n - len(c.slots)))
	}
	if c.refusal == refusedByDayCount {
		l.requestDayCount()
	}
}
