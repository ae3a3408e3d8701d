package limiter

import (
	"slices"
	"strings"
	"time"
)

// ScopeView is the state of one policy, or of one scope breaker, for one value of its scope.
type ScopeView struct {
	Policy string `json:"policy"`
	Scope  string `json:"scope"`
	// Remaining are the units that can be used now. Nil means unknown, for example because no
	// response has reported them yet. InFlight are the units of calls that have not ended.
	Remaining *int64 `json:"remaining,omitempty"`
	InFlight  int64  `json:"inFlight"`
	// Until is when more units are available, or when an open breaker is probed.
	Until       *time.Time `json:"until,omitempty"`
	BreakerOpen bool       `json:"breakerOpen,omitempty"`
	At          time.Time  `json:"at"`
}

// bucketSnapshot is the last known state of a bucket.
type bucketSnapshot struct {
	bucket *bucket
	state  bucketState
	at     time.Time
}

const (
	// maxShownBuckets is the maximum number of buckets in a report. bucketViewTTL is how long a
	// bucket is shown after its last use.
	maxShownBuckets = 64
	bucketViewTTL   = 10 * time.Minute
)

// noteBuckets records the bucket states of a reply for the view, except policies with
// a scope of unbounded size (such as {key}). The caller holds l.mu.
func (l *Limiter) noteBuckets(a answer) {
	for b, state := range a.states {
		if l.quota.scoped[b.policyIndex].kind == breakerKind {
			if state.remaining == 0 {
				l.rememberOpenBreaker(b)
			} else {
				delete(l.openBreakers, b.key)
			}
		}
		if !l.quota.scoped[b.policyIndex].hasFewBuckets() {
			continue
		}
		if _, known := l.states[b.name]; !known && len(l.states) >= maxShownBuckets {
			l.forgetBuckets(a.then)
			if len(l.states) >= maxShownBuckets {
				continue
			}
		}
		l.states[b.name] = bucketSnapshot{b, state, a.then}
	}
}

func (l *Limiter) forgetBuckets(now time.Time) {
	for name, b := range l.states {
		if now.Sub(b.at) > bucketViewTTL {
			delete(l.states, name)
		}
	}
}

// hasFewBuckets reports whether the scope has a bounded number of values.
func (s scopedPolicy) hasFewBuckets() bool {
	return !slices.ContainsFunc(s.scope.names, func(name string) bool {
		return !slices.Contains([]string{"credential", "endpoint", "facet", "method", "resource"}, name)
	})
}

// scopeViews returns the recorded bucket states. The caller holds l.mu.
func (l *Limiter) scopeViews(now time.Time) []ScopeView {
	l.forgetBuckets(now)
	var all []ScopeView
	for _, b := range l.states {
		s := l.quota.scoped[b.bucket.policyIndex]
		if s.kind == breakerKind && b.state.remaining > 0 || s.kind == minIntervalKind {
			continue // closed breakers and intervals are not shown
		}
		v := ScopeView{Policy: s.policy.Name, Scope: b.bucket.value, InFlight: b.state.inFlight, At: time.UnixMicro(l.clock.at(b.at)).UTC()}
		v.BreakerOpen = s.kind == breakerKind
		if left := b.state.remaining; left >= 0 && !v.BreakerOpen {
			v.Remaining = &left
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

// mergeScopes returns the newest state of each bucket from all reports.
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
