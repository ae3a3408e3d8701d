package limiter

import (
	"context"
	"encoding/json"
	"time"

	"github.com/freshet/freshet/schemas"
)

// reporter writes the report of this process to Redis, from which ReadView reads it.
type reporter struct {
	limiter *Limiter
	at      time.Time // when the last report was scheduled; used only by the goroutine of the follower

	// Limiter.mu guards the following fields.
	wanted      bool     // true if the process must publish a report after the next call to Redis
	due         bool     // true if Run must publish a report now
	withWaiters bool     // true if the last report contained waiters
	last        [2]int64 // numbers of slots granted to this process, at the times of its last two reports
}

// publish publishes this process's report, and updates the metrics from the state in
// Redis.
func (r *reporter) publish() {
	l := r.limiter
	now := time.Now()
	l.mu.Lock()
	quota := l.alloc.active.quota
	p := ProcessView{l.deps.Process, now, r.laneView(schemas.High, now), r.laneView(schemas.Low, now), l.alloc.buckets.views(now, &l.alloc.clock)}
	r.last = [2]int64{l.alloc.queues.used(), r.last[0]}
	r.withWaiters = r.withWaiters || p.High.Waiting+p.Low.Waiting > 0 // if calls wait now, one more report must be published when no call waits any more
	l.mu.Unlock()
	l.metrics.scopes(p.Scopes)
	for lane, v := range map[schemas.Lane]LaneView{schemas.High: p.High, schemas.Low: p.Low} {
		l.metrics.waiting[lane].Set(float64(v.Waiting))
	}
	ctx, cancel := context.WithTimeout(context.Background(), redisTimeout)
	defer cancel()
	// The metrics are set first, so that they are never older than the report.
	v, err := readState(ctx, l.deps.Redis, l.source, quota)
	if err != nil {
		// The next call to Redis finds out whether Redis is down, and callRedis then logs the outage.
		l.mu.Lock()
		l.alloc.forceCall = true
		l.mu.Unlock()
		l.wake()
		return
	}
	p.At = v.At // by Redis' clock, because the processes' clocks differ
	text, err := json.Marshal(p)
	if err != nil {
		return
	}
	l.metrics.view.show(v)
	// this also sends the saved count to Redis, so that the source does not wait for the first rejected
	// call
	if v.State == StateRestoringCount {
		l.alloc.day.request()
	}
	pipe := l.deps.Redis.Pipeline()
	pipe.HSet(ctx, reportsKey(l.source), l.deps.Process, text)
	pipe.Expire(ctx, reportsKey(l.source), reportsKeyTTL)
	_, _ = pipe.Exec(ctx) // if this fails, the next report replaces this one
}

// remove deletes this process's report.
func (r *reporter) remove() {
	l := r.limiter
	if l.deps.Redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), redisTimeout)
	defer cancel()
	_ = l.deps.Redis.HDel(ctx, reportsKey(l.source), l.deps.Process).Err() // an error is ignored, because the report expires by itself
}

// laneView describes one lane, all its queues together. The caller holds Limiter.mu.
func (r *reporter) laneView(lane schemas.Lane, now time.Time) LaneView {
	l := r.limiter
	var v LaneView
	var oldest *Permit
	for _, q := range l.alloc.queues.all {
		if q.lane != lane {
			continue
		}
		v.Waiting, v.Granted, v.Rejected = v.Waiting+q.length, v.Granted+q.used, v.Rejected+q.rejected
		for _, first := range []*Permit{q.fresh.first, q.retries.first} {
			for p := first; p != nil; p = p.after { // the first waiter need not be the oldest one, because callers of Reacquire are put first
				if oldest == nil || p.since.Before(oldest.since) {
					oldest = p
				}
			}
		}
	}
	if oldest == nil {
		return v
	}
	v.OldestMS = float64(now.Sub(oldest.since).Microseconds()) / 1000
	switch {
	case l.redis.failed > 0:
		v.Reason = reasonRedis
	case l.alloc.active.unread:
		v.Reason = reasonSettingsUnread
	case l.alloc.day.unsaved:
		v.Reason = reasonDayCountUnsaved
	case l.alloc.active.stopped:
		v.Reason = ReasonStopped
	default:
		v.Reason = l.alloc.active.quota.waitReason(oldest.queue.refusal)
	}
	return v
}

// schedule lets this process publish its report, which contains the number of its waiters. It does
// so every busyReportInterval while calls wait or are made, and once more afterwards. An idle
// process publishes a report every idleReportInterval. The process counts as idle when its last two
// reports contain the same number of calls.
//
// A report follows a successful call to Redis for permits, so it adds no load while Redis is down.
// If no such call happens within a second, the report is published without one, unless the last call
// failed: then the process makes a call first. If calls for permits are not allowed (settings unread,
// count not saved), the report is published at once.
func (r *reporter) schedule(now time.Time) {
	l := r.limiter
	if l.deps.Redis == nil {
		return
	}
	l.mu.Lock()
	waiting := l.alloc.queues.waiting() > 0
	l.metrics.view.fade(now)
	calls := l.alloc.queues.used()
	busy, age := waiting || r.withWaiters || r.last != [2]int64{calls, calls}, now.Sub(r.at)
	due := busy && age >= busyReportInterval || age >= idleReportInterval
	blocked := l.alloc.active.unread || l.alloc.day.unsaved
	if due {
		r.withWaiters = waiting
	}
	switch {
	case !r.wanted || blocked:
	case l.redis.failed > 0:
		l.alloc.forceCall = true
	default: // no call to Redis has happened for a second
		r.due, r.wanted = true, false
	}
	r.wanted = r.wanted || (due && !blocked)
	withoutCall := due && blocked && l.redis.failed == 0
	l.mu.Unlock()
	if due {
		r.at = now
	}
	if withoutCall {
		r.publish()
	}
	l.wake()
}
