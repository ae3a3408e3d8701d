// Package due does what is due when it is due: it sleeps until then, hears from any
// process that something has become due earlier, and goes on when what keeps it from
// working has passed.
package poll

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// minBackoff doubles up to backoffMost while the work fails.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// publishTimeout bounds what telling others may take.
	publishTimeout = time.Second
)

// Messages are what is logged once as the work begins to fail, and once when it is over.
type Messages struct{ Failing, Recovered string }

// Poller works whenever something is due. Any number may share a channel.
type Poller struct {
	channel  string
	rdb      redis.UniversalClient
	log      *slog.Logger
	messages Messages
	local    chan time.Time // told in this process; has room for one
}

// New returns the loop that hears on a channel of Redis.
func New(channel string, rdb redis.UniversalClient, log *slog.Logger, words Messages) *Poller {
	return &Poller{channel: channel, rdb: rdb, log: log, messages: words, local: make(chan time.Time, 1)}
}

// WakeAt tells all loops of the channel that something is due then. This one hears it
// without Redis; another that misses it finds it when its line is back, or when it
// looks again by itself.
func (l *Poller) WakeAt(ctx context.Context, at time.Time) {
	l.WakeLocal(at)
	WakeAt(ctx, l.rdb, l.channel, at, l.log)
}

// WakeLocal tells this loop alone.
func (l *Poller) WakeLocal(at time.Time) {
	first := at
	for heard := false; !heard; {
		select {
		case l.local <- first:
			heard = true
		case other := <-l.local: // not heard yet: the earlier of the two will do
			first = earlier(first, other)
		}
	}
}

// WakeAt tells all loops of a channel, from a process that may have none.
func WakeAt(ctx context.Context, rdb redis.UniversalClient, channel string, at time.Time, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	if err := rdb.Publish(ctx, channel, strconv.FormatInt(at.UnixMilli(), 10)).Err(); err != nil {
		log.Debug("what has become due was not told to others; one of them finds it later", "channel", channel, "err", err)
	}
}

// Run calls work until ctx ends: at once, when the time has come that it returned or
// that was told, when the line was cut and something may have been missed, and no later
// than latest after its last call. While work fails it is called again after a pause.
func (l *Poller) Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error {
	line := l.rdb.Subscribe(ctx, l.channel)
	defer func() { _ = line.Close() }()
	heard := line.ChannelWithSubscriptions()
	var next time.Time // to look
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var told time.Time
		select {
		case <-ctx.Done():
			return nil
		case told = <-l.local:
		case message := <-heard:
			told = wakeTimeOf(message)
		case <-timer.C:
		}
		if told.IsZero() {
			due, ok := l.workUntilDone(ctx, work)
			if !ok {
				return nil
			}
			next = time.Now().Add(latest)
			told = due
		}
		next = earlier(next, told)
		timer.Reset(time.Until(next))
	}
}

// wakeTimeOf returns the time that a message tells of; zero if the line was cut.
func wakeTimeOf(message any) time.Time {
	if m, ok := message.(*redis.Message); ok {
		if ms, err := strconv.ParseInt(m.Payload, 10, 64); err == nil {
			return time.UnixMilli(ms)
		}
	}
	return time.Time{}
}

// workUntilDone works until that succeeds; it reports false if ctx ended.
func (l *Poller) workUntilDone(ctx context.Context, work func(context.Context, time.Time) (time.Time, error)) (next time.Time, ok bool) {
	failed := false
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		next, err := work(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return time.Time{}, false
		case err == nil && failed:
			l.log.Info(l.messages.Recovered) //nolint:sloglint // a constant of whoever made the loop
			return next, true
		case err == nil:
			return next, true
		case !failed:
			failed = true
			l.log.Warn(l.messages.Failing, "err", err) //nolint:sloglint // likewise
		}
		if !Pause(ctx, backoff) {
			return time.Time{}, false
		}
	}
}

// EnqueueAll asks at a door for all until none is left, and returns those that are when
// while is over; ctx may end it earlier.
func EnqueueAll[T any](ctx context.Context, all []T, while func() bool, ask func(context.Context, []T) (left []T)) []T {
	backoff := minBackoff
	for left := all; ; backoff = min(2*backoff, maxBackoff) {
		if left = ask(ctx, left); len(left) == 0 || !while() || !Pause(ctx, backoff) {
			return left
		}
	}
}

// Pause waits; it reports false if ctx ended first.
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

// earlier returns the earlier of two times; one that is zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || (!a.IsZero() && a.Before(b)) {
		return a
	}
	return b
}
