package limiter

import (
	"slices"
	"time"
)

// bucketTable holds the buckets of a source, as this process knows them.
type bucketTable struct {
	source       string
	scoped       []scopedPolicy            // the scoped policies and breakers of the active quota (Quota.scoped)
	resources    map[string]string         // maps an endpoint to the upstream's name for its budget
	newResources []string                  // new endpoint-resource pairs, not yet shared with the other processes
	openBreakers map[string]bool           // scope breakers that are open, as far as this process knows, by bucket key
	states       map[string]bucketSnapshot // last known state of each bucket, by the name of the bucket
}

func newBucketTable(source string) bucketTable {
	return bucketTable{source: source, resources: map[string]string{}, openBreakers: map[string]bool{}, states: map[string]bucketSnapshot{}}
}

// bucket is the state of one policy, or of one scope breaker, for one value of its scope.
type bucket struct {
	policyIndex int    // index of the bucket's policy in Quota.scoped
	name        string // name of the policy, and the value of its scope
	value       string // the value of the scope alone
	key         string // Redis key of the bucket's state
}

// bucketKey returns the Redis key of a bucket. Concurrency buckets have a key prefix of their own,
// because they are Redis hashes. All other buckets are strings.
func bucketKey(source string, k kind, name string) string {
	if k == concurrencyKind {
		return "quota:{" + source + "}:p:" + name
	}
	return "quota:{" + source + "}:b:" + name
}

// of returns the bucket of a scoped policy that counts a call with this credential.
func (t *bucketTable) of(n int, c Call, credential string) *bucket {
	s := t.scoped[n]
	if resource, known := t.resources[c.Endpoint]; known {
		c.Resource = resource
	}
	value := s.scope.fill(func(name string) string { return c.value(name, credential) })
	name := s.policy.Name + ":" + value
	return &bucket{policyIndex: n, name: name, value: value, key: bucketKey(t.source, s.kind(), name)}
}

// candidate returns the costs of a call with this credential in all its buckets.
func (t *bucketTable) candidate(c Call, credential string) *candidate {
	w := &candidate{call: c, credential: credential}
	for n, s := range t.scoped {
		if s.policy.Match.fits(c) {
			w.costs = append(w.costs, bucketCost{t.of(n, c, credential), s.policy.cost(c)})
		}
	}
	return w
}

// scopesBy reports whether the scope of at least one policy contains the placeholder `name`.
func (t *bucketTable) scopesBy(name string) bool {
	return slices.ContainsFunc(t.scoped, func(s scopedPolicy) bool { return slices.Contains(s.scope.names, name) })
}

// maxOpenBreakers is how many open scope breakers a process remembers. At this maximum the process
// forgets all of them. Afterwards a successful call closes a forgotten breaker only if the call was
// the breaker's probe.
const maxOpenBreakers = 1000

func (t *bucketTable) rememberOpenBreaker(b *bucket) {
	if len(t.openBreakers) >= maxOpenBreakers {
		clear(t.openBreakers)
	}
	t.openBreakers[b.key] = true
}

// bucketSnapshot is the state of a bucket that this process last read from Redis, and the time of that
// read.
type bucketSnapshot struct {
	bucket *bucket
	state  bucketState
	at     time.Time
}

const (
	// maxShownBuckets is the maximum number of buckets in the report of a process. `bucketViewTTL` is
	// how long the report contains a bucket after the bucket's last use.
	maxShownBuckets = 64
	bucketViewTTL   = 10 * time.Minute
)

// note records the states of buckets that the script has returned, for the report of this process. It
// records no buckets of scopes that can have any number of values, such as {key}. It also records which
// scope breakers are open.
func (t *bucketTable) note(a answer) {
	for b, state := range a.states {
		if t.scoped[b.policyIndex].kind() == breakerKind {
			if state.remaining == 0 {
				t.rememberOpenBreaker(b)
			} else {
				delete(t.openBreakers, b.key)
			}
		}
		if !t.scoped[b.policyIndex].hasFewBuckets() {
			continue
		}
		if _, known := t.states[b.name]; !known && len(t.states) >= maxShownBuckets {
			t.forget(a.then)
			if len(t.states) >= maxShownBuckets {
				continue
			}
		}
		t.states[b.name] = bucketSnapshot{b, state, a.then}
	}
}

func (t *bucketTable) forget(now time.Time) {
	for name, b := range t.states {
		if now.Sub(b.at) > bucketViewTTL {
			delete(t.states, name)
		}
	}
}

// hasFewBuckets reports whether the scope has a bounded number of values.
func (s scopedPolicy) hasFewBuckets() bool {
	return !slices.ContainsFunc(s.scope.names, func(name string) bool {
		return !slices.Contains([]string{"credential", "endpoint", "facet", "host", "method", "resource"}, name)
	})
}

// views returns the recorded bucket states.
func (t *bucketTable) views(now time.Time, clock *clock) []ScopeView {
	t.forget(now)
	var all []ScopeView
	for _, b := range t.states {
		s := t.scoped[b.bucket.policyIndex]
		if s.kind() == breakerKind && b.state.remaining > 0 || s.kind() == minIntervalKind {
			continue // closed breakers and minimum intervals are not shown
		}
		v := ScopeView{Policy: s.policy.Name, Scope: b.bucket.value, InFlight: b.state.inFlight, At: time.UnixMicro(clock.at(b.at)).UTC()}
		v.BreakerOpen = s.kind() == breakerKind
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
