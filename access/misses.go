package access

import (
	"fmt"
	"time"
)

// missesPerNewKey is how many lookups of missing keys a client may make for each new key of its
// limit. Only the database knows whether an uncached key is stored. If a site uses one API key
// for all its visitors, one visitor who invents keys must not block the stored keys of the
// others. So the limit of lookups is higher than that of new keys; it only protects the
// database.
const missesPerNewKey = 10

// autoMisses is the limit of lookups if Limits.NewKeys is AutoRate. It protects the database and
// does not depend on the quota of a source: 333 lookups per second are 6 % of the 5,300 measured
// on two cores (docs/operating.md).
var autoMisses = rate{20_000, time.Minute}

// missesOf returns the limit of lookups of missing keys, per process, for all sources together.
func missesOf(newKeys Rate) rate {
	if newKeys == AutoRate {
		return autoMisses
	}
	calls, window := newKeys.Parse()
	return rate{missesPerNewKey * calls, window}
}

// AllowLookup reports whether a client may look up a key that is not cached. It returns a
// *problem.HTTPError with status 429 if too many of the client's lookups found nothing.
func (m *ClientLimiter) AllowLookup(client string) error {
	if m == nil || m.misses.calls == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := m.meter(client).misses.charge(m.misses, 0, m.now())
	if wait == 0 {
		return nil
	}
	m.refused.WithLabelValues("misses").Inc()
	return limitExceeded("too-many-new-keys", "misses", fmt.Sprintf("You exceeded the limit of lookups of missing keys, %s. Send fewer requests.", m.misses), m.misses.calls, m.misses.window, wait)
}

// RecordMisses counts n lookups of a client that found nothing.
func (m *ClientLimiter) RecordMisses(client string, n int) {
	if m == nil || m.misses.calls == 0 || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meter(client).misses.charge(m.misses, n, m.now())
}

// charge takes n tokens even if there are fewer, and returns how long until one is available.
func (b *bucket) charge(r rate, n int, now time.Time) (wait time.Duration) {
	b.take(r, 0, now) // refills the bucket
	b.left -= float64(n)
	if b.left >= 1 {
		return 0
	}
	return max(1, time.Duration((1-b.left)/float64(r.calls)*float64(r.window)))
}
