package limiter

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
)

const (
	// After a failed call to Redis the next call waits for firstRetryDelay, and then for
	// retryDelay: one call per second and process while Redis is down.
	firstRetryDelay = 50 * time.Millisecond
	retryDelay      = time.Second
)

// Run grants permits until ctx ends. It returns when its last call to Redis has ended. It does
// not cancel waiting callers; their own contexts do.
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
		} // otherwise a change of these conditions wakes Run
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

// step hands out due slots. It returns the demand for the next call, and when it must run again
// at the latest; zero means only after a wake-up. The caller holds l.mu.
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
		// Only one lane asks, chosen at random, so that both lanes get probes. Otherwise an
		// entity of HIGH that always fails could keep the breaker open, or LOW could take all
		// probes without having calls left.
		if rand.IntN(2) == 0 { //nolint:gosec // not a secret
			d.high = 0
		} else {
			d.low = 0
		}
	}
	d.queues = l.selectQueues(d.queues)
	d.hasEvents = len(l.bucketEvents) > 0 || len(l.events) > 0 || len(l.refunds) > 0 || l.reportForcesCall
	return d, next
}

// selectQueues picks at most maxQueuesPerCall queues for the next Redis call, starting with the
// oldest last call. They are sorted by lane, HIGH first, and then by the age of the oldest
// waiter. While the circuit breaker is open it picks one queue at random, for the probe.
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
	if len(all) > maxQueuesPerCall { // otherwise queues that are rejected repeatedly would starve the others
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

// serveDue hands due slots to waiters and drops expired ones. It returns when the next slot is
// due, or expires without a waiter. The caller holds l.mu.
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

// callRedisUntilServed calls Redis until no further call is needed now.
func (l *Limiter) callRedisUntilServed() {
	for l.callRedis(l.gatherDemand()) {
	}
}

// callRedis makes one call to Redis. It reports whether another call is needed now; then the
// caller keeps l.calling and must make it.
func (l *Limiter) callRedis(d demand) bool {
	l.mu.Lock()
	d.events = l.takeEvents()
	before := time.Now()
	if before.Sub(l.renewed) > clockTermsInterval {
		l.renewClockTerms(before)
	}
	d.terms = l.terms
	if len(d.queues)+len(l.bucketEvents) > 0 {
		l.calls++
		for _, c := range d.queues {
			c.q.lastCall = l.calls
		}
		d.bucketEvents, d.process = l.takeBucketEvents(), l.name
		d.tickets = fmt.Sprintf("%s.%d.", l.name, l.calls)
	}
	l.mu.Unlock()
	// The call serves many waiters, so it has its own deadline and no waiter's context.
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
		// Reports are published only after a successful call, so that they don't add calls
		// while Redis is down.
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

// gatherDemand yields until the demand stops growing. Callers that were just served usually ask
// again at once, and then share one call.
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
	for _, h := range d.bucketEvents {
		if h.retryable() {
			l.bucketEvents = append(l.bucketEvents, h)
		}
	}
	// It is unknown whether the script ran. A repeated backoff or breaker event has no effect,
	// but a repeated refund would allow one call too many.
	repeated, _, _ := strings.Cut(d.events, "refund ")
	if repeated = strings.TrimSpace(repeated); repeated != "" {
		l.events = append(l.events, repeated)
		l.backoffPending = l.backoffPending || strings.Contains(repeated, "backoff ") || strings.Contains(repeated, "open ")
	}
}

// answer is a grant with its demand and the local times before and after the call. Redis' now
// lies between the two.
type answer struct {
	grant
	demand       demand
	before, then time.Time
}

// applyGrant adds the granted slots. A slot is valid from a.then + wait, when its time has
// certainly come, until a.before + wait + permitLife, when it could have expired. The caller
// holds l.mu.
func (l *Limiter) applyGrant(a answer) {
	if ahead := l.clock.read(a.before, a.then, a.now); ahead > 0 {
		// Slots from before and after the step could overlap in time, so the state starts with
		// a quiet period.
		l.log.Warn("redis clock was set forward; no permits are granted during the quiet period", "by", ahead)
		l.events = append(l.events, fmt.Sprintf("step %d", a.now))
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
	if l.backoffPending || l.stopped {
		for _, wait := range append(a.high, a.low...) {
			l.refund(slot{at: a.now + wait.Microseconds()})
		}
		for i, c := range a.queues {
			for _, s := range c.slots {
				l.refund(a.slot(i, s))
			}
		}
		return // a backoff or a stop arrived during the call, so its slots are released
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

// requestDayCount asks the follower to send the day's count to Redis.
func (l *Limiter) requestDayCount() {
	select {
	case l.dayCountNeeded <- struct{}{}:
	default:
	}
}

// slot returns the k-th slot that a queue was granted.
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
		return // all its waiters have left
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
