package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

const (
	// After a failure the next call goes out after firstPause, after another one
	// after probePause: a dead Redis gets one probe a second from a process.
	firstRetryDelay = 50 * time.Millisecond
	retryDelay      = time.Second
)

// Run gives out permits until ctx ends, and returns when its last call to Redis
// has. Waiters are left to their own contexts.
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
		} // otherwise who lifts what forbids it wakes us
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

// canCallRedis reports whether Redis may be called now. The caller holds l.mu.
func (l *Limiter) canCallRedis(now time.Time) bool {
	return !now.Before(l.pause) && !l.dayCountUnsaved && !l.settingsUnread
}

// step gives out what is due and returns what to ask Redis for now, and when to
// look again at the latest (zero: when something changes). The caller holds l.mu.
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
		// Either lane may probe: one entity of HIGH that is never answered well must not
		// keep LOW from finding the upstream well, nor a LOW that has no call left HIGH.
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

// selectQueues returns the classes that are asked for now, if they are too many those that were
// asked for longest ago: those of HIGH first, of each lane
// those whose first has waited longest. A probing stop lets one call pass: whose, chance says.
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
	if len(all) > maxQueuesPerCall { // or those that are refused again and again kept the others out
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

// serveDue hands due slots to waiters and drops lapsed ones. It returns when the
// next slot is due for a waiter, or lapses for want of one.
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

// callRedisUntilServed calls Redis until nothing more is to be asked for now.
func (l *Limiter) callRedisUntilServed() {
	for l.callRedis(l.gatherDemand()) {
	}
}

// callRedis makes one call to Redis for a demand. It reports whether there is more to
// ask for at once; the right to do so stays with its caller.
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
	// The call is nobody's own: it ends by its deadline and not with a waiter.
	g, err := l.acquireSlots(context.Background(), d)
	then := time.Now()
	l.metrics.calls.Inc()
	l.mu.Lock()
	if err != nil {
		l.fail(d, then, err)
	} else {
		if l.failed > 0 {
			l.log.Info("Redis answers again; permits flow")
		}
		l.failed, l.pause = 0, time.Time{}
		l.applyGrant(answer{g, d, before, then})
		// Only where Redis has just answered: a dead one is probed by nothing else.
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

// gatherDemand returns what to ask for, when all who are about to ask do: those who were
// just served, above all, come at once.
func (l *Limiter) gatherDemand() demand {
	for n := -1; ; {
		l.mu.Lock()
		d, _ := l.step(time.Now())
		l.mu.Unlock()
		asked := d.high + d.low
		for _, c := range d.queues {
			asked += c.n
		}
		if asked == n {
			return d
		}
		n = asked
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
		l.log.Error("no permit is given until Redis answers; it is probed once a second", "err", err)
	}
	for _, h := range d.bucketEvents {
		if h.retryable() {
			l.bucketEvents = append(l.bucketEvents, h)
		}
	}
	// Whether the script ran is not known. A brake that is told twice is one brake;
	// a refund that is told twice would be a call too many.
	told, _, _ := strings.Cut(d.events, "refund ")
	if told = strings.TrimSpace(told); told != "" {
		l.events = append(l.events, told)
		l.backoffPending = l.backoffPending || strings.Contains(told, "backoff ") || strings.Contains(told, "open ")
	}
}

// answer is a grant with the moments between which Redis' now lay.
type answer struct {
	grant
	demand       demand
	before, then time.Time
}

// applyGrant adds the granted slots. Redis' now lay between a.before and a.then: a
// slot has certainly come a wait after the later, and may have lapsed a wait and
// permitLife after the earlier. The caller holds l.mu.
func (l *Limiter) applyGrant(a answer) {
	if ahead := l.clock.read(a.before, a.then, a.now); ahead > 0 {
		// Slots of before and after the step could fall together: start quiet.
		l.log.Warn("the clock of Redis was set forward; permits pause until that is past", "by", ahead)
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
		return // a brake or a stop came in meanwhile: what was reserved before it is given up
	}
	for _, side := range []struct {
		q     *queue
		waits []time.Duration
		back  time.Duration
		why   refusal
		asked int
	}{{&l.high, a.high, a.backHigh, a.refusalHigh, a.demand.high}, {&l.low, a.low, a.backLow, a.refusalLow, a.demand.low}} {
		q := side.q
		for _, wait := range side.waits {
			q.slots = append(q.slots, slot{notBefore: a.then.Add(wait), notAfter: a.before.Add(wait + permitLife), at: a.now + wait.Microseconds()})
		}
		q.used += int64(len(side.waits))
		if side.asked > 0 {
			q.refusal = side.why
		}
		if side.back > 0 {
			q.back = a.before.Add(side.back)
			q.refused += int64(side.asked - len(side.waits))
			l.metrics.rejected[q.lane].Add(float64(side.asked - len(side.waits)))
		}
		if side.why == refusedByDayCount {
			l.requestDayCount()
		}
	}
	for i, c := range a.queues {
		l.applyQueueGrant(a, i, c)
	}
}

// requestDayCount has the day's count told to Redis.
func (l *Limiter) requestDayCount() {
	select {
	case l.dayCountNeeded <- struct{}{}:
	default:
	}
}

// slot returns a slot that a class was granted.
func (a answer) slot(i int, s queueSlot) slot {
	wait := micros(s.wait)
	return slot{
		notBefore: a.then.Add(wait), notAfter: a.before.Add(wait + permitLife), at: a.now + s.wait,
		candidate: a.demand.queues[i].q.key.candidates[s.candidate], ticket: a.demand.tickets + strconv.Itoa(s.number), probe: s.probe,
	}
}

// applyQueueGrant adds the slots that a class was granted. The caller holds l.mu.
func (l *Limiter) applyQueueGrant(a answer, i int, c queueGrant) {
	q, n := a.demand.queues[i].q, a.demand.queues[i].n
	if l.queueByKey[q.keyText] == nil && len(c.slots) == 0 {
		return // everybody went meanwhile
	}
	q = l.liveQueue(q)
	for _, s := range c.slots {
		q.slots = append(q.slots, a.slot(i, s))
	}
	q.used += int64(len(c.slots))
	q.refusal = c.refusal
	if c.back > 0 {
		q.back = a.before.Add(micros(c.back))
		q.refused += int64(n - len(c.slots))
		l.metrics.rejected[q.lane].Add(float64(n - len(c.slots)))
	}
	if c.refusal == refusedByDayCount {
		l.requestDayCount()
	}
}

// ErrEvictionEnabled says that Redis may throw the lanes' state away to make room: then the
// limit would hold no longer.
var ErrEvictionEnabled = errors.New("redis may evict keys, and with them the count of the calls made; set maxmemory-policy noeviction")

// CheckRedis returns ErrEvicts, or why Redis did not answer. A server that does not
// tell its policy is taken at its word.
func CheckRedis(ctx context.Context, rdb redis.UniversalClient) error {
	check := func(ctx context.Context, rdb redis.Cmdable) error {
		memory, err := rdb.Info(ctx, "memory").Result()
		if err != nil {
			if _, refused := errors.AsType[redis.Error](err); refused {
				return nil // it answers, but may not tell
			}
			return fmt.Errorf("ask Redis for its settings: %w", err)
		}
		for line := range strings.Lines(memory) {
			policy, found := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:")
			if found && policy != "noeviction" {
				return fmt.Errorf("maxmemory-policy %s: %w", policy, ErrEvictionEnabled)
			}
		}
		return nil
	}
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return check(ctx, node) })
	}
	return check(ctx, rdb)
}
