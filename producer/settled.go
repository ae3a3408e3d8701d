package producer

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

const (
	// pingInterval is how long nothing may be heard on a line before it is asked whether it
	// still stands; after as long again without an answer it does not.
	pingInterval = time.Second
	// minBackoff doubles up to lineBackoffMost while Redis is away.
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// SubscribeSettled calls heard for each settled request of the sources, at least one,
// from any process. It returns nil when ctx has ended.
//
// line(true) is called when the subscription is in force, before anything is heard
// on it, and line(false) when it is lost, at the latest 2 s after Redis fell silent,
// or when ctx has ended. What is settled before line(true) may not be told: then the
// caller must look again at all it remembers. All calls come from one goroutine, and
// while one lasts nothing else is noticed. The ends of one entity are heard in their
// order; those of two may change places where they lie on two nodes of a cluster.
func SubscribeSettled(ctx context.Context, rdb redis.UniversalClient, sources []string, heard func(schemas.Settled), line func(up bool)) error {
	channels := make([]string, len(sources))
	for i, source := range sources {
		channels[i] = schemas.SettledChannel(source)
	}
	slices.Sort(channels)
	channels = slices.Compact(channels) // Redis counts each once
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		if subscribeOnce(ctx, rdb, channels, heard, line) {
			backoff = minBackoff
		}
		again := time.NewTimer(backoff)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil
		case <-again.C:
		}
	}
}

// subscribeOnce follows until the line is lost or ctx ends, and reports whether it
// stood at all. It takes one connection: the one that the client library would put
// in its place unasked may have missed something.
func subscribeOnce(ctx context.Context, rdb redis.UniversalClient, channels []string, heard func(schemas.Settled), line func(up bool)) (up bool) {
	sub := rdb.Subscribe(ctx)
	defer func() { _ = sub.Close() }()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })() // a read takes no notice of ctx
	dialling, cancel := context.WithTimeout(ctx, 2*pingInterval)
	defer cancel()
	if sub.Subscribe(dialling, channels...) != nil {
		return false
	}
	// With a context that has ended the library reads and writes, but can't dial.
	once, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	// The read itself has no deadline: one in the midst of a message would garble
	// what follows.
	ask := time.AfterFunc(pingInterval, func() { _ = sub.Ping(once) })
	defer ask.Stop()
	lost := time.AfterFunc(2*pingInterval, func() { _ = sub.Close() })
	defer lost.Stop()
	defer func() {
		if up {
			line(false)
		}
	}()
	for {
		ask.Reset(pingInterval)
		lost.Reset(2 * pingInterval)
		m, err := sub.Receive(once)
		ask.Stop()
		lost.Stop()
		if err != nil || ctx.Err() != nil {
			return up
		}
		switch m := m.(type) {
		case *redis.Subscription:
			if up { // another connection, after all
				return up
			}
			if m.Count == len(channels) {
				up = true
				line(true)
			}
		case *redis.Message:
			// One of another release that can't be read is passed over: it could be
			// told to nobody.
			if s, err := schemas.DecodeSettled(m.Channel, m.Payload); err == nil && up {
				heard(s)
			}
		}
	}
}
