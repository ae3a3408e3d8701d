package limiter

import (
	"context"
	"slices"
	"time"

	"github.com/freshet/freshet/poll"
)

// The functions of this file exchange two kinds of data with the other processes of the source,
// through Redis. The first are the upstream's names for its budgets. The second are wake-up
// messages, which name the process that can take a free in-flight slot.

func resourcesKey(source string) string { return "quota:{" + source + "}:names" }

// resourcesTTL is how long Redis keeps the names of a source's budgets after a process last added
// one.
const resourcesTTL = 24 * time.Hour

// syncResources exchanges the names of budgets with the other processes.
func (f *follower) syncResources(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	scopes, resources := l.alloc.buckets.scopesBy("resource"), l.alloc.buckets.newResources
	l.alloc.buckets.newResources = nil
	l.mu.Unlock()
	if !scopes || l.deps.Redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	pipe := l.deps.Redis.Pipeline()
	if len(resources) > 0 {
		pipe.HSet(ctx, resourcesKey(l.source), resources)
		pipe.Expire(ctx, resourcesKey(l.source), resourcesTTL)
	}
	all := pipe.HGetAll(ctx, resourcesKey(l.source))
	_, err := pipe.Exec(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.alloc.buckets.newResources = append(resources, l.alloc.buckets.newResources...) // the new names are sent again a second later
		return
	}
	for endpoint, resource := range all.Val() {
		if l.alloc.buckets.resources[endpoint] != resource {
			l.alloc.setResource(endpoint, resource)
		}
	}
}

// subscribeWakeUps lets all queues request slots again when Redis reports a free in-flight slot for
// this process. It blocks until ctx ends.
func (f *follower) subscribeWakeUps(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	limitsInFlight := slices.ContainsFunc(l.alloc.active.quota.scoped, func(s scopedPolicy) bool { return s.kind() == concurrencyKind })
	l.mu.Unlock()
	if l.deps.Redis == nil || !limitsInFlight {
		return
	}
	subscription := l.deps.Redis.Subscribe(ctx, wakeUpChannel(l.source))
	defer func() { _ = subscription.Close() }()
	messages := subscription.Channel(poll.CheckConnection)
	for {
		select {
		case <-ctx.Done():
			return
		case m, open := <-messages:
			if !open {
				return
			}
			l.onWakeUp(m.Payload)
		}
	}
}

// onWakeUp handles one message of the wake-up channel: the name of a process.
func (l *Limiter) onWakeUp(name string) {
	if name != l.name {
		return
	}
	l.mu.Lock()
	l.alloc.queues.retryAll()
	l.mu.Unlock()
	l.wake()
}
