package limiter

import (
	"context"
	"slices"
	"time"
)

// This file contains two kinds of data that the processes of a source exchange through Redis,
// besides permits and reports. The first are the upstream's names for its budgets. The second are
// wake-up messages, which name the process that can take a free in-flight slot.

// setResource records the upstream's name for the budget of an endpoint, and moves the
// endpoint's waiters to the queue of that budget. The caller holds l.mu.
func (l *Limiter) setResource(endpoint, resource string) {
	l.resources[endpoint] = resource
	for _, q := range slices.Clone(l.queues) {
		if q.key == nil || q.key.candidates[0].call.Endpoint != endpoint {
			continue
		}
		call := q.key.candidates[0].call
		call.Credentials = nil
		for _, w := range q.key.candidates {
			call.Credentials = append(call.Credentials, w.credential)
		}
		for to := l.queueFor(q.lane, call); to != q && q.length > 0; {
			p := q.serve()
			p.queue = to
			to.push(p)
		}
	}
}

func resourcesKey(source string) string { return "quota:{" + source + "}:names" }

// resourcesTTL is how long Redis keeps the names of a source's budgets after a process last added
// one.
const resourcesTTL = 24 * time.Hour

// syncResources exchanges the names of budgets with the other processes.
func (f *follower) syncResources(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	scopes, resources := l.scopesBy("resource"), l.newResources
	l.newResources = nil
	l.mu.Unlock()
	if !scopes || l.rdb == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	if len(resources) > 0 {
		pipe.HSet(ctx, resourcesKey(l.source), resources)
		pipe.Expire(ctx, resourcesKey(l.source), resourcesTTL)
	}
	all := pipe.HGetAll(ctx, resourcesKey(l.source))
	_, err := pipe.Exec(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.newResources = append(resources, l.newResources...) // the new names are sent again a second later
		return
	}
	for endpoint, resource := range all.Val() {
		if l.resources[endpoint] != resource {
			l.setResource(endpoint, resource)
		}
	}
}

// subscribeWakeUps lets all queues request slots again when Redis reports a free in-flight slot
// for this process. It returns when ctx ends.
func (l *Limiter) subscribeWakeUps(ctx context.Context) {
	l.mu.Lock()
	limitsInFlight := slices.ContainsFunc(l.quota.scoped, func(s scopedPolicy) bool { return s.kind == concurrencyKind })
	l.mu.Unlock()
	if l.rdb == nil || !limitsInFlight {
		return
	}
	subscription := l.rdb.Subscribe(ctx, wakeUpChannel(l.source))
	defer func() { _ = subscription.Close() }()
	messages := subscription.Channel()
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
	l.retryAllQueues()
	l.mu.Unlock()
	l.wake()
}
