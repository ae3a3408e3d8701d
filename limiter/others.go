package limiter

import (
	"context"
	"slices"
	"time"
)

// What the processes of a source tell each other besides what the script writes: by which
// names the upstream knows its budgets, and who may have a place now.

// rename has those who wait stand in the line of the name that was learned for what their
// endpoint is charged to. The caller holds l.mu.
func (l *Limiter) rename(endpoint, resource string) {
	l.resources[endpoint] = resource
	for _, q := range slices.Clone(l.lines) {
		if q.class == nil || q.class.ways[0].call.Endpoint != endpoint {
			continue
		}
		call := q.class.ways[0].call
		call.Credentials = nil
		for _, w := range q.class.ways {
			call.Credentials = append(call.Credentials, w.credential)
		}
		for to := l.line(q.lane, call); to != q && q.length > 0; {
			p := q.serve()
			p.queue = to
			to.push(p)
		}
	}
}

func namesKey(source string) string { return "quota:{" + source + "}:names" }

// namesFor is how long a name that nobody meets any more is kept.
const namesFor = 24 * time.Hour

// names shares with the other processes by which names the upstream knows what endpoints
// are charged to.
func (f *following) names(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	scopes, tell := l.scopesBy("resource"), l.named
	l.named = nil
	l.mu.Unlock()
	if !scopes || l.rdb == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	if len(tell) > 0 {
		pipe.HSet(ctx, namesKey(l.source), tell)
		pipe.Expire(ctx, namesKey(l.source), namesFor)
	}
	all := pipe.HGetAll(ctx, namesKey(l.source))
	_, err := pipe.Exec(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.named = append(tell, l.named...) // told again in a second
		return
	}
	for endpoint, resource := range all.Val() {
		if l.resources[endpoint] != resource {
			l.rename(endpoint, resource)
		}
	}
}

// wakes has this process ask at once when it is told that it may have a place, until ctx
// ends.
func (l *Limiter) wakes(ctx context.Context) {
	l.mu.Lock()
	places := slices.ContainsFunc(l.quota.scoped, func(s section) bool { return s.kind == placesKind })
	l.mu.Unlock()
	if l.rdb == nil || !places {
		return
	}
	line := l.rdb.Subscribe(ctx, wakesKey(l.source))
	defer func() { _ = line.Close() }()
	told := line.Channel()
	for {
		select {
		case <-ctx.Done():
			return
		case m, open := <-told:
			if !open {
				return
			}
			l.roused(m.Payload)
		}
	}
}

// roused is told which process may have a place.
func (l *Limiter) roused(name string) {
	if name != l.name {
		return
	}
	l.mu.Lock()
	l.again()
	l.mu.Unlock()
	l.wake()
}
