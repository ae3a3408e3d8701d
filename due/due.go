// Package due does what is due when it is due: it sleeps until then, hears from any
// process that something has become due earlier, and goes on when what keeps it from
// working has passed.
package due

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// backoffFirst doubles up to backoffMost while the work fails.
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 5 * time.Second
	// tellPatience bounds what telling others may take.
	tellPatience = time.Second
)

// Words are what is logged once as the work begins to fail, and once when it is over.
type Words struct{ Waits, GoesOn string }

// Loop works whenever something is due. Any number may share a channel.
type Loop struct {
	channel string
	rdb     redis.UniversalClient
	log     *slog.Logger
	words   Words
	own     chan time.Time // told in this process; has room for one
}

// New returns the loop that hears on a channel of Redis.
func New(channel string, rdb redis.UniversalClient, log *slog.Logger, words Words) *Loop {
	return &Loop{channel: channel, rdb: rdb, log: log, words: words, own: make(chan time.Time, 1)}
}

// Tell tells all loops of the channel that something is due then. This one hears it
// without Redis; another that misses it finds it when its line is back, or when it
// looks again by itself.
func (l *Loop) Tell(ctx context.Context, at time.Time) {
	l.Wake(at)
	Tell(ctx, l.rdb, l.channel, at, l.log)
}

// Wake tells this loop alone.
func (l *Loop) Wake(at time.Time) {
	first := at
	for heard := false; !heard; {
		select {
		case l.own <- first:
			heard = true
		case other := <-l.own: // not heard yet: the earlier of the two will do
			first = earlier(first, other)
		}
	}
}

// Tell tells all loops of a channel, from a process that may have none.
func Tell(ctx context.Context, rdb redis.UniversalClient, channel string, at time.Time, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellPatience)
	defer cancel()
	if err := rdb.Publish(ctx, channel, strconv.FormatInt(at.UnixMilli(), 10)).Err(); err != nil {
		log.Debug("what has become due was not told to others; one of them finds it later", "channel", channel, "err", err)
	}
}

// Run calls work until ctx ends: at once, when the time has come that it returned or
// that was told, when the line was cut and something may have been missed, and no later
// than latest after its last call. While work fails it is called again after a pause.
func (l *Loop) Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error {
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
		case told = <-l.own:
		case message := <-heard:
			told = toldBy(message)
		case <-timer.C:
		}
		if told.IsZero() {
			due, ok := l.untilDone(ctx, work)
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

// toldBy returns the time that a message tells of; zero if the line was cut.
func toldBy(message any) time.Time {
	if m, ok := message.(*redis.Message); ok {
		if ms, err := strconv.ParseInt(m.Payload, 10, 64); err == nil {
			return time.UnixMilli(ms)
		}
	}
	return time.Time{}
}

// untilDone works until that succeeds; it reports false if ctx ended.
func (l *Loop) untilDone(ctx context.Context, work func(context.Context, time.Time) (time.Time, error)) (next time.Time, ok bool) {
	failed := false
	for backoff := backoffFirst; ; backoff = min(2*backoff, backoffMost) {
		next, err := work(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return time.Time{}, false
		case err == nil && failed:
			l.log.Info(l.words.GoesOn) //nolint:sloglint // a constant of whoever made the loop
			return next, true
		case err == nil:
			return next, true
		case !failed:
			failed = true
			l.log.Warn(l.words.Waits, "err", err) //nolint:sloglint // likewise
		}
		if !Pause(ctx, backoff) {
			return time.Time{}, false
		}
	}
}

// UntilAsked asks at a door for all until none is left, and returns those that are when
// while is over; ctx may end it earlier.
func UntilAsked[T any](ctx context.Context, all []T, while func() bool, ask func(context.Context, []T) (left []T)) []T {
	backoff := backoffFirst
	for left := all; ; backoff = min(2*backoff, backoffMost) {
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
