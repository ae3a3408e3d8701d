package limiter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
)

// asker asks Redis for slots, once.
type asker func(ctx context.Context, d demand) (grant, error)

// demand is what one call to Redis asks for.
type demand struct {
	high, low int
	brake     time.Duration
}

// grant is what it answers: waits until the slots, from Redis' now, and in how
// long to come back for what was refused (0: nothing was).
type grant struct {
	high, low         []time.Duration
	backHigh, backLow time.Duration
}

const (
	// askTimeout bounds one call to Redis: a stopped one is noticed in time.
	askTimeout = 150 * time.Millisecond
	// askMost bounds the slots of one call, and with it the script's time.
	askMost = 1000
	// After a failure the next call goes out after firstPause, after another one
	// after probePause: a dead Redis gets one probe a second from a process.
	firstPause = 50 * time.Millisecond
	probePause = time.Second
)

// script returns the asker that runs limiter_acquire.
func script(source string, l Lanes, rdb redis.UniversalClient) asker {
	key := "quota:{" + source + "}:lanes"
	var fixed []any
	for _, lane := range l.lanes {
		fixed = append(fixed, lane.interval.Microseconds(), lane.burst)
	}
	return func(ctx context.Context, d demand) (grant, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		args := append([]any{
			d.high, d.low, horizon.Microseconds(), l.quiet().Microseconds(), d.brake.Microseconds(),
		}, fixed...)
		reply, err := eval.Once(ctx, rdb, lua.LimiterAcquire, eval.Call{Key: key, Args: args}).Int64Slice()
		if err != nil {
			return grant{}, err
		}
		return decodeGrant(reply)
	}
}

func decodeGrant(reply []int64) (grant, error) {
	if len(reply) < 4 || reply[0] < 0 || reply[1] < 0 || int64(len(reply)) != 4+reply[0]+reply[1] {
		return grant{}, fmt.Errorf("limiter_acquire returned %v, which does not add up", reply)
	}
	g := grant{backHigh: micros(reply[2]), backLow: micros(reply[3])}
	for i, us := range reply[4:] {
		if int64(i) < reply[0] {
			g.high = append(g.high, micros(us))
		} else {
			g.low = append(g.low, micros(us))
		}
	}
	return g, nil
}

// answer is a grant with the moments between which Redis' now lay.
type answer struct {
	grant
	asked        demand
	before, then time.Time
	err          error
}

// Run gives out permits until ctx ends, and returns when its last call to Redis
// has. Waiters are left to their own contexts.
func (l *Limiter) Run(ctx context.Context) error {
	answers := make(chan answer, 1)
	asking := false // one call at a time: whoever waits meanwhile rides the next
	failures := 0
	var pause time.Time // no call before, after a failure
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		d, next := l.step(now)
		if !asking && d != (demand{}) && !now.Before(pause) {
			asking = true
			go func() {
				before := time.Now()
				g, err := l.ask(context.WithoutCancel(ctx), d)
				answers <- answer{g, d, before, time.Now(), err}
			}()
		} else if !asking && d != (demand{}) {
			next = earliest(next, pause)
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			if asking {
				<-answers
			}
			return nil
		case <-l.kick:
		case <-timer.C:
		case a := <-answers:
			asking = false
			l.metrics.calls.Inc()
			if a.err == nil {
				if failures > 0 {
					l.log.Info("Redis answers again; permits flow")
				}
				failures = 0
				l.take(a)
				continue
			}
			failures++
			pause = time.Now().Add(probePause)
			if failures == 1 {
				pause = time.Now().Add(firstPause)
			}
			if failures == 2 {
				l.log.Error("no permit is given until Redis answers; it is probed once a second", "err", a.err)
			}
			l.metrics.failures.Inc()
		}
	}
}

// step gives out what is due and returns what to ask Redis for now, and when to
// look again at the latest (zero: when something changes).
func (l *Limiter) step(now time.Time) (d demand, next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.brake = l.brake
	for _, q := range []*queue{&l.high, &l.low} {
		next = earliest(next, l.giveOut(q, now))
		missing := min(q.waiters.Len()-len(q.slots), askMost)
		switch {
		case missing <= 0:
			continue
		case now.Before(q.back):
			next = earliest(next, q.back)
			continue
		}
		if q == &l.high {
			d.high = missing
		} else {
			d.low = missing
		}
	}
	return d, next
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// giveOut hands due slots to waiters and drops lapsed ones. It returns when the
// next slot is due for a waiter.
func (l *Limiter) giveOut(q *queue, now time.Time) time.Time {
	for len(q.slots) > 0 {
		s := q.slots[0]
		switch {
		case now.After(s.notAfter):
			l.metrics.lapsed.Inc()
		case q.waiters.Len() == 0:
			return time.Time{} // whoever comes first finds it
		case now.Before(s.notBefore):
			return s.notBefore
		default:
			w := q.waiters.Remove(q.waiters.Front()).(*waiter)
			l.metrics.waited[q.lane].Observe(now.Sub(w.since).Seconds())
			w.permit <- &Permit{limiter: l, queue: q, slot: s}
		}
		q.slots = q.slots[1:]
	}
	return time.Time{}
}

// take adds the granted slots. Redis' now lay between a.before and a.then: a
// slot has certainly come a wait after the later, and may have lapsed a wait and
// permitLife after the earlier.
func (l *Limiter) take(a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.asked.brake >= l.brake {
		l.brake = 0
	}
	if l.brake > 0 {
		return // a brake came in meanwhile: what was reserved before it is given up
	}
	for _, side := range []struct {
		q     *queue
		waits []time.Duration
		back  time.Duration
		asked int
	}{{&l.high, a.high, a.backHigh, a.asked.high}, {&l.low, a.low, a.backLow, a.asked.low}} {
		for _, wait := range side.waits {
			side.q.slots = append(side.q.slots, slot{a.then.Add(wait), a.before.Add(wait + permitLife)})
		}
		if side.back > 0 {
			side.q.back = a.before.Add(side.back)
			l.metrics.rejected[side.q.lane].Add(float64(side.asked - len(side.waits)))
		}
	}
}

// CheckRedis returns an error if Redis may throw the lanes' state away to make
// room: then the limit would hold no longer. A server that does not tell its
// policy is taken at its word.
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
				return fmt.Errorf("with maxmemory-policy %s Redis may evict keys, and with them the count of the calls made; set maxmemory-policy noeviction", policy)
			}
		}
		return nil
	}
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return check(ctx, node) })
	}
	return check(ctx, rdb)
}
