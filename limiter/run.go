package limiter

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
)

const (
	// After the first failed call to Redis, the next call is made after firstRetryDelay. After
	// each further failure it is made after retryDelay, so each process makes one call per second
	// while Redis is down.
	firstRetryDelay = 50 * time.Millisecond
	retryDelay      = time.Second
)

// redisCalls is the state of the calls to Redis for slots. Limiter.mu guards it.
type redisCalls struct {
	calls    int       // number of calls so far; it is a part of each ticket
	calling  bool      // a call is in flight; later callers share the next call
	handover bool      // Run must make the next call to Redis, in place of a caller of Acquire
	pause    time.Time // no call is made before this time, because the last call failed
	failed   int       // number of failed calls to Redis since the last successful one

	conditions observe.Conditions
}

// conditionCalls begins with the second failed call in a row: after a first failure, the call is
// repeated at once.
var conditionCalls = observe.Condition{
	Event: "permits_unavailable", Failing: "calls to redis failed twice; no permits are granted, retrying once a second", Recovered: "permits are granted again",
}

// Run grants permits until ctx ends. After the end of ctx, it blocks until its last call to Redis has
// ended. It does not cancel the callers that wait for permits; only their own contexts do that.
func (l *Limiter) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	f := follower{l: l}
	wg.Go(func() { f.run(ctx) })
	wg.Go(func() { f.subscribeWakeUps(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		l.mu.Lock()
		d, next := l.alloc.step(now)
		if l.reports.due {
			l.reports.due = false
			wg.Go(l.reports.publish)
		}
		switch {
		case l.redis.handover:
			l.redis.handover = false
			wg.Go(l.callRedisUntilServed)
		case !d.needed() || l.redis.calling:
		case l.canCallRedis(now):
			l.redis.calling = true
			wg.Go(l.callRedisUntilServed)
		case now.Before(l.redis.pause):
			next = poll.Earlier(next, l.redis.pause)
		} // if settings are unread or the day count is unsaved, Run wakes up once they are read or saved
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
	return !now.Before(l.redis.pause) && !l.alloc.day.unsaved && !l.alloc.active.unread
}

// callRedisUntilServed calls Redis until the waiters have slots or Redis has rejected them until
// later.
func (l *Limiter) callRedisUntilServed() {
	for l.callRedis(l.gatherDemand()) {
	}
}

// callRedis makes one call to Redis. It returns true if another call to Redis is needed at once.
// In that case l.redis.calling stays true, and the caller of callRedis must make the second call.
func (l *Limiter) callRedis(d demand) bool {
	l.mu.Lock()
	d.events = l.alloc.pending.takeOfSource()
	before := time.Now()
	if before.Sub(l.alloc.active.renewed) > clockTermsInterval {
		l.alloc.active.renewClockTerms(before)
	}
	d.terms = l.alloc.active.terms
	if len(d.queues)+len(l.alloc.pending.ofBuckets) > 0 {
		l.redis.calls++
		for _, c := range d.queues {
			c.q.lastCall = l.redis.calls
		}
		d.bucketEvents, d.process = l.alloc.pending.takeOfBuckets(), l.name
		d.tickets = fmt.Sprintf("%s.%d.", l.name, l.redis.calls)
	}
	l.mu.Unlock()
	// The call serves many waiters, so it has its own deadline and does not use the context of a
	// single waiter.
	g, err := l.acquireSlots(context.Background(), d)
	then := time.Now()
	l.metrics.calls.Inc()
	l.mu.Lock()
	if err != nil {
		l.metrics.failures.Inc()
		l.alloc.pending.restore(d)
		if l.redis.fail(then); l.redis.failed >= 2 {
			l.redis.conditions.Warn(l.log, conditionCalls, err)
		}
	} else {
		l.redis.conditions.Resolved(l.log, conditionCalls)
		l.redis.failed, l.redis.pause = 0, time.Time{}
		l.alloc.applyGrant(answer{g, d, before, then})
		// Reports are published only after a successful call to Redis, so that they don't add
		// calls while Redis is down.
		l.reports.due, l.reports.wanted, l.alloc.forceCall = l.reports.due || l.reports.wanted, false, false
	}
	defer l.mu.Unlock()
	more, next := l.alloc.step(then)
	l.redis.calling = more.needed() && l.canCallRedis(then)
	if l.reports.due || (!l.redis.calling && (more.needed() || !next.IsZero())) {
		l.wake()
	}
	return l.redis.calling
}

// gatherDemand yields to other goroutines until the demand stops growing. Callers that were just
// served usually call Acquire again at once, and can then share one call to Redis.
func (l *Limiter) gatherDemand() demand {
	for n := -1; ; {
		l.mu.Lock()
		d, _ := l.alloc.step(time.Now())
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

// fail records a failed call to Redis, and sets the time of the next one.
func (c *redisCalls) fail(now time.Time) {
	c.failed++
	c.pause = now.Add(retryDelay)
	if c.failed == 1 {
		c.pause = now.Add(firstRetryDelay)
	}
}
