package limiter

import (
	"context"
	"slices"
	"strings"
	"time"
)

// ScopeView is what one policy has left for one value of its scope, or that something is
// halted alone.
type ScopeView struct {
	Policy string `json:"policy"`
	Scope  string `json:"scope"`
	// Left are units that may be used now; nil: no answer has told yet. UnderWay are those of
	// calls that have not ended.
	Left     *int64 `json:"left,omitempty"`
	UnderWay int64  `json:"underWay"`
	// Until is when there is more, or when what is halted is probed.
	Until  *time.Time `json:"until,omitempty"`
	Halted bool       `json:"halted,omitempty"`
	At     time.Time  `json:"at"`
}

// bucketShown is what the script said last of a bucket, and when.
type bucketShown struct {
	bucket *bucket
	state  bucketState
	at     time.Time
}

const (
	// shownMost bounds the buckets that a process shows, and shownFor how long.
	shownMost = 64
	shownFor  = 10 * time.Minute
)

// noteBuckets notes what the script said of the buckets, for the live view: of those that
// have a bounded number of values. The caller holds l.mu.
func (l *Limiter) noteBuckets(a answer) {
	for b, state := range a.states {
		if l.quota.scoped[b.section].kind == haltKind {
			if state.left == 0 {
				l.noteHalt(b)
			} else {
				delete(l.halted, b.key)
			}
		}
		if !l.quota.scoped[b.section].shown() {
			continue
		}
		if _, known := l.states[b.name]; !known && len(l.states) >= shownMost {
			l.forgetBuckets(a.then)
			if len(l.states) >= shownMost {
				continue
			}
		}
		l.states[b.name] = bucketShown{b, state, a.then}
	}
}

func (l *Limiter) forgetBuckets(now time.Time) {
	for name, b := range l.states {
		if now.Sub(b.at) > shownFor {
			delete(l.states, name)
		}
	}
}

// shown reports whether the section's buckets are few.
func (s section) shown() bool {
	return !slices.ContainsFunc(s.scope.names, func(name string) bool {
		return !slices.Contains([]string{"credential", "endpoint", "facet", "method", "resource"}, name)
	})
}

// scopeViews returns what this process knows of the buckets. The caller holds l.mu.
func (l *Limiter) scopeViews(now time.Time) []ScopeView {
	l.forgetBuckets(now)
	var all []ScopeView
	for _, b := range l.states {
		s := l.quota.scoped[b.bucket.section]
		if s.kind == haltKind && b.state.left > 0 || s.kind == gapKind {
			continue // nothing to see
		}
		v := ScopeView{Policy: s.policy.Name, Scope: b.bucket.value, UnderWay: b.state.under, At: time.UnixMicro(l.clock.at(b.at)).UTC()}
		v.Halted = s.kind == haltKind
		if left := b.state.left; left >= 0 && !v.Halted {
			v.Left = &left
		}
		if b.state.until > 0 {
			until := utc(b.state.until)
			v.Until = &until
		}
		all = append(all, v)
	}
	sortScopes(all)
	return all
}

func sortScopes(all []ScopeView) {
	slices.SortFunc(all, func(a, b ScopeView) int {
		if c := strings.Compare(a.Policy, b.Policy); c != 0 {
			return c
		}
		return strings.Compare(a.Scope, b.Scope)
	})
}

// mergeScopes keeps of what the processes tell the newest.
func mergeScopes(processes []ProcessView) []ScopeView {
	newest := map[[2]string]ScopeView{}
	for _, p := range processes {
		for _, s := range p.Scopes {
			if id := [2]string{s.Policy, s.Scope}; s.At.After(newest[id].At) {
				newest[id] = s
			}
		}
	}
	all := make([]ScopeView, 0, len(newest))
	for _, s := range newest {
		all = append(all, s)
	}
	sortScopes(all)
	return all
}

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
		for to := l.line(q.lane, call); to != q && q.first != nil; {
			p := q.first
			q.remove(p)
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
	if l.rdb == nil || !slices.ContainsFunc(l.quota.scoped, func(s section) bool { return s.kind == placesKind }) {
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
