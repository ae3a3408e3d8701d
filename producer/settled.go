package producer

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

const (
	// pingInterval is how long a subscription may receive nothing before a PING is sent. If Redis
	// sends nothing for another pingInterval, the connection is closed.
	pingInterval = time.Second
	// minBackoff and maxBackoff limit the exponential backoff between connection attempts.
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// SubscribeSettled calls `onSettled` for each settled request of the sources, whichever process
// settled it. There must be at least one source. It reconnects with backoff, and returns nil when ctx
// ends.
//
// onConnected(true) is called when the subscription is active and before the first onSettled.
// onConnected(false) is called when the subscription is lost, at most 2 s after Redis stopped
// answering, and when ctx ends. Messages published while disconnected are lost, so after
// onConnected(true) the caller must treat everything it has cached as outdated.
//
// All calls come from one goroutine; a call that blocks delays the next call. The order of one
// entity's messages is kept. Messages of entities on different nodes of a cluster may arrive in
// any order.
func SubscribeSettled(ctx context.Context, rdb redis.UniversalClient, sources []string, onSettled func(schemas.Settled), onConnected func(connected bool)) error {
	channels := make([]string, len(sources))
	for i, source := range sources {
		channels[i] = schemas.SettledChannel(source)
	}
	slices.Sort(channels)
	channels = slices.Compact(channels) // remove duplicates, because Redis confirms each channel only once
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		if subscribeOnce(ctx, rdb, channels, onSettled, onConnected) {
			backoff = minBackoff
		}
		retry := time.NewTimer(backoff)
		select {
		case <-ctx.Done():
			retry.Stop()
			return nil
		case <-retry.C:
		}
	}
}

// subscribeOnce subscribes and delivers messages until the connection is lost or ctx ends. It
// reports whether the subscription was ever active. It uses exactly one connection: messages
// would be lost if the client library replaced it silently.
func subscribeOnce(ctx context.Context, rdb redis.UniversalClient, channels []string, onSettled func(schemas.Settled), onConnected func(connected bool)) (connected bool) {
	sub := rdb.Subscribe(ctx)
	defer func() { _ = sub.Close() }()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })() // close the connection when ctx ends, because Receive ignores the end of ctx
	connectCtx, cancel := context.WithTimeout(ctx, 2*pingInterval)
	defer cancel()
	if sub.Subscribe(connectCtx, channels...) != nil {
		return false
	}
	// With a canceled context the Redis client still reads and writes on the open connection, but
	// does not dial a new one.
	noDialCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	// Receive has no deadline: a deadline in the middle of a message would corrupt the next read.
	// Instead, two timers run during Receive: one sends a PING, the other closes the connection.
	ping := time.AfterFunc(pingInterval, func() { _ = sub.Ping(noDialCtx) })
	defer ping.Stop()
	timeout := time.AfterFunc(2*pingInterval, func() { _ = sub.Close() })
	defer timeout.Stop()
	defer func() {
		if connected {
			onConnected(false)
		}
	}()
	for {
		ping.Reset(pingInterval)
		timeout.Reset(2 * pingInterval)
		message, err := sub.Receive(noDialCtx)
		ping.Stop()
		timeout.Stop()
		if err != nil || ctx.Err() != nil {
			return connected
		}
		switch message := message.(type) {
		case *redis.Subscription:
			if connected { // a second confirmation: the Redis client has reconnected, so messages may be lost
				return connected
			}
			if message.Count == len(channels) {
				connected = true
				onConnected(true)
			}
		case *redis.Message:
			// A message that can't be decoded, for example of a newer release, is skipped: its
			// entity is unknown.
			if s, err := schemas.DecodeSettled(message.Channel, message.Payload); err == nil && connected {
				onSettled(s)
			}
		}
	}
}
