// Package poll calls a function when work is due. A Poller sleeps until the next due time, wakes
// earlier when any process announces earlier work over Redis, and retries failed calls with
// backoff. Announcements may be lost. Therefore the Poller also calls the function after a
// reconnection to Redis, and whenever a maximum interval has passed since the last call. The functions
// Pause and Every are for work that needs no announcements.
//
// Example: work returns 12:00:00 as the next due time, and the maximum interval is 10 min. At
// 11:50:00 the Poller sleeps until 12:00:00. At 11:55:00 another process calls WakeAt for 11:57:00.
// The Poller then calls work at 11:57:00.
package poll

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/observe"
)

const (
	// minBackoff is the first delay after a failure; it doubles up to maxBackoff.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// publishTimeout is the time limit for the publication of a wake-up on the Redis channel.
	publishTimeout = time.Second
)

// Poller calls a function when work is due. Any number of pollers may share a Redis channel.
type Poller struct {
	channel    string
	rdb        redis.UniversalClient
	log        *slog.Logger
	failing    observe.Condition // condition that is logged while the poller's calls of its function fail
	conditions observe.Conditions
	local      chan time.Time // wake-up time set by this process; buffered for one value
}

// New returns a poller that listens on a Redis channel. It logs the condition "failing" while calls
// of the function that is passed to Run fail.
func New(channel string, rdb redis.UniversalClient, log *slog.Logger, failing observe.Condition) *Poller {
	return &Poller{channel: channel, rdb: rdb, log: log, failing: failing, local: make(chan time.Time, 1)}
}

// CheckConnection is the option for subscriptions to wake-ups: an idle connection is checked every 15
// s. A process has several such connections for each source, and finds its work without wake-ups,
// only later.
var CheckConnection = redis.WithChannelHealthCheckInterval(15 * time.Second)

// WakeAt wakes all pollers of the channel at the time `at`. This poller wakes even if Redis is
// down. A poller in another process that misses the message finds the work after its reconnection
// or its maximum interval.
func (p *Poller) WakeAt(ctx context.Context, at time.Time) {
	p.WakeLocal(at)
	WakeAt(ctx, p.rdb, p.channel, at, p.log)
}

// WakeLocal wakes only this poller at the time `at`.
func (p *Poller) WakeLocal(at time.Time) {
	first := at
	for sent := false; !sent; {
		select {
		case p.local <- first:
			sent = true
		case other := <-p.local: // Run has not yet received the time `other`: send the earlier of the two times
			first = Earlier(first, other)
		}
	}
}

// WakeAt wakes all pollers of a channel at the time `at`. It is for processes without a poller of
// their own. If the message can't be published, WakeAt only logs the error, because pollers find
// the work later even without the wake-up.
func WakeAt(ctx context.Context, rdb redis.UniversalClient, channel string, at time.Time, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	if err := rdb.Publish(ctx, channel, strconv.FormatInt(at.UnixMilli(), 10)).Err(); err != nil {
		log.Debug("wake-up of other processes not published; they find the work at their next poll", "channel", channel, "err", err)
	}
}

// Run calls the function `work` at once and then until ctx ends: at the due time that `work`
// returned, at the time of a wake-up, and after a reconnection to Redis. At most the duration
// `latest` passes between two calls. A call that fails is repeated with backoff.
func (p *Poller) Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error {
	subscription := p.rdb.Subscribe(ctx, p.channel)
	defer func() { _ = subscription.Close() }()
	messages := subscription.ChannelWithSubscriptions(CheckConnection)
	var due, next time.Time // if `due` is zero, the function `work` must be called now; `next` is the time of the next call
	timer := time.NewTimer(latest)
	defer timer.Stop()
	for {
		if due.IsZero() {
			var ok bool
			if due, ok = p.workUntilDone(ctx, work); !ok {
				return nil
			}
			next = time.Now().Add(latest)
		}
		next = Earlier(next, due)
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return nil
		case due = <-p.local:
		case message := <-messages:
			due = wakeTimeOf(message)
		case <-timer.C:
			due = time.Time{}
		}
	}
}

// wakeTimeOf returns the time in a wake-up message. Redis also sends a message about the
// subscription after each reconnection. For this message wakeTimeOf returns the zero time, which
// makes Run call its function at once.
func wakeTimeOf(message any) time.Time {
	if m, ok := message.(*redis.Message); ok {
		if ms, err := strconv.ParseInt(m.Payload, 10, 64); err == nil {
			return time.UnixMilli(ms)
		}
	}
	return time.Time{}
}

// workUntilDone calls the function `work` until it succeeds. It reports false if ctx ended.
func (p *Poller) workUntilDone(ctx context.Context, work func(context.Context, time.Time) (time.Time, error)) (next time.Time, ok bool) {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		next, err := work(ctx, time.Now())
		if ctx.Err() != nil {
			return time.Time{}, false
		}
		if p.conditions.Record(p.log, p.failing, err); err == nil {
			return next, true
		}
		if !Pause(ctx, backoff) {
			return time.Time{}, false
		}
	}
}

// EnqueueAll calls the function `enqueue` with all elements. `enqueue` returns the elements that it
// could not enqueue, and EnqueueAll calls it again with them, with backoff. EnqueueAll ends when no
// element is left, when `while` returns false, or when ctx ends. It returns the elements that are
// not enqueued.
func EnqueueAll[T any](ctx context.Context, all []T, while func() bool, enqueue func(context.Context, []T) (left []T)) []T {
	backoff := minBackoff
	for left := all; ; backoff = min(2*backoff, maxBackoff) {
		if left = enqueue(ctx, left); len(left) == 0 || !while() || !Pause(ctx, backoff) {
			return left
		}
	}
}

// Pause waits for d. It reports false if ctx ended first.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Every calls the function `do` once per interval until ctx ends. The first call is after one
// interval.
func Every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Earlier returns the earlier of two times. A zero time is ignored.
func Earlier(a, b time.Time) time.Time {
	if b.IsZero() || (!a.IsZero() && a.Before(b)) {
		return a
	}
	return b
}
