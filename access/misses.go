package access

import (
	"fmt"
	"time"
)

// missesPerNewKey is how many missing keys a client may read for each new key that it
// may have fetched. Only the database knows whether a key that is not in memory is
// stored. A site has one API key for all its visitors, and one visitor who makes keys
// up must not have the stored keys of the others refused. So lookups are refused later
// than new keys, when they begin to cost the database something.
const missesPerNewKey = 10

// autoMisses is the limit of misses where Limits.NewKeys is AutoRate. It limits what one
// client costs the database, so it does not depend on the quota of a source: 333 lookups a
// second are 6 % of the 5,300 that were measured on two cores (docs/operating.md).
var autoMisses = rate{20_000, time.Minute}

// missesOf returns the limit of misses, for each process and all sources together.
func missesOf(newKeys Rate) rate {
	if newKeys == AutoRate {
		return autoMisses
	}
	calls, window := newKeys.Parse()
	return rate{missesPerNewKey * calls, window}
}

// AllowLookup reports whether a client may have the database searched for a key that is not
// in memory: not while it has read so many keys of which nothing is stored. The error
// is as that of Request.
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
	return limitExceeded("too-many-new-keys", "misses", fmt.Sprintf("These are more keys of which nothing is stored than %s. Wait, and ask for less.", m.misses), m.misses.calls, m.misses.window, wait)
}

// RecordMisses counts n keys that a client read and of which the database has nothing.
func (m *ClientLimiter) RecordMisses(client string, n int) {
	if m == nil || m.misses.calls == 0 || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meter(client).misses.charge(m.misses, n, m.now())
}

// charge takes n whatever is left, and returns after how long a call will be left.
func (b *bucket) charge(r rate, n int, now time.Time) (wait time.Duration) {
	b.take(r, 0, now) // what has come back meanwhile
	b.left -= float64(n)
	if b.left >= 1 {
		return 0
	}
	return max(1, time.Duration((1-b.left)/float64(r.calls)*float64(r.window)))
}
