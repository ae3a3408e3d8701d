package access

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/problem"
)

// missesPerNewKey is how many lookups of entities without a snapshot a client may make for each new
// entity that Limits.NewKeys allows. Only the database knows whether an uncached entity has a
// snapshot. If a site uses one API key for all its visitors, one visitor may request keys that do
// not exist. That visitor must not block the other visitors' reads of stored entities. So the limit
// of lookups is higher than the limit of new keys; it only protects the database.
const missesPerNewKey = 10

// autoLookupLimit is the limit of lookups if Limits.NewKeys is AutoRate. It protects the database
// and does not depend on the quota of a source. 333 lookups per second are 6 % of the 5,300 per
// second that were measured on two cores (docs/operating.md).
var autoLookupLimit = CallRate{20_000, time.Minute}

// lookupLimit returns the limit of one client's lookups of entities without a snapshot. It applies
// per process, to all sources together.
func lookupLimit(newKeys Rate) CallRate {
	if newKeys == AutoRate {
		return autoLookupLimit
	}
	calls, window := newKeys.Parse()
	return CallRate{missesPerNewKey * calls, window}
}

// AllowLookup decides whether a client may look up an uncached entity in the database. It returns a
// *problem.HTTPError with status 429 if too many of the client's lookups found nothing.
func (m *ClientLimiter) AllowLookup(client string) error {
	if m == nil || m.lookupRate.calls == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := m.bucketsOf(client).misses.Spend(m.lookupRate, 0, m.now())
	if wait == 0 {
		return nil
	}
	m.refused.WithLabelValues("misses").Inc()
	return limitExceeded(problem.TooManyNewKeys, "misses", fmt.Sprintf("You exceeded the limit of lookups of missing keys, %s. Send fewer requests.", m.lookupRate), m.lookupRate.calls, m.lookupRate.window, wait)
}

// RecordMisses counts n lookups of a client that found nothing.
func (m *ClientLimiter) RecordMisses(client string, n int) {
	if m == nil || m.lookupRate.calls == 0 || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bucketsOf(client).misses.Spend(m.lookupRate, n, m.now())
}
