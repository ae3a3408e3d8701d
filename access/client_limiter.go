package access

import (
	"container/list"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/problem"
)

const (
	// maxClients is the maximum number of clients in memory. The least recently used client is
	// removed first, so that many forged addresses can't exhaust the memory.
	maxClients = 100_000
)

// ClientLimiter limits the requests of each client of this process, or of all processes after Share.
// A nil *ClientLimiter has no limits. Its methods may be called concurrently.
type ClientLimiter struct {
	requests   CallRate
	lookupRate CallRate // limit of lookups, which are requests of entities that are not stored; see lookupLimit
	waiting    int
	refused    *prometheus.CounterVec
	notShared  prometheus.Counter
	shared     *sharedRate // limit of requests of all processes; nil: the limit applies to this process
	now        func() time.Time

	mu      sync.Mutex
	clients map[string]*list.Element // the element of each client in the list `recent`
	recent  *list.List               // list of *clientBuckets; the client that was used last is first
	waits   map[string]int           // number of waiting requests by client
}

// clientBuckets has the token buckets of one client.
type clientBuckets struct {
	client   string
	requests Bucket
	misses   Bucket
}

// NewClientLimiter returns a limiter. The limits must have passed Config.Check.
func NewClientLimiter(l Limits, reg prometheus.Registerer) *ClientLimiter {
	m := &ClientLimiter{
		waiting: l.Waiting, now: time.Now, clients: map[string]*list.Element{}, recent: list.New(), waits: map[string]int{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "access_limited_total", Help: "Requests refused because their client exceeded a limit, by limit.",
		}, []string{"limit"}),
		notShared: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "access_not_shared_total", Help: "Requests that only the limit of this process counted, because Redis did not answer (access.limits.shared).",
		}),
	}
	m.requests.calls, m.requests.window, _ = l.Requests.parse()
	m.lookupRate = lookupLimit(l.NewKeys)
	for _, limit := range []string{"requests", "misses", "new-keys", "outstanding", "waiting"} {
		m.refused.WithLabelValues(limit)
	}
	reg.MustRegister(m.refused, m.notShared)
	return m
}

// AllowRequests counts n requests of a client. If they exceed the limit, it counts none and
// returns a *problem.HTTPError with status 429.
func (m *ClientLimiter) AllowRequests(client string, n int) error {
	if m == nil || m.requests.calls == 0 {
		return nil
	}
	if wait := m.take(client, n); wait > 0 {
		m.refused.WithLabelValues("requests").Inc()
		return limitExceeded(problem.TooManyRequests, "requests", fmt.Sprintf("You exceeded the limit of requests, %s. Send fewer requests.", m.requests), m.requests.calls, m.requests.window, wait)
	}
	return nil
}

// take takes n tokens of the client's requests and returns 0, or takes none and returns the time until
// there are enough.
func (m *ClientLimiter) take(client string, n int) (wait time.Duration) {
	if m.shared == nil {
		return m.takeOwn(client, n)
	}
	// The bucket of this process has at least as many tokens as the shared one. So a client that
	// exceeds the limit costs no Redis call.
	if wait := m.ownWait(client, n); wait > 0 || n == 0 {
		return wait
	}
	wait, err := m.shared.take(m.requests, client, n)
	if err != nil {
		m.notShared.Inc()
		return m.takeOwn(client, n)
	}
	if wait == 0 {
		m.spendOwn(client, n)
	}
	return wait
}

func (m *ClientLimiter) takeOwn(client string, n int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bucketsOf(client).requests.Take(m.requests, n, m.now())
}

// ownWait returns the time until the bucket of this process has n tokens, and takes none.
func (m *ClientLimiter) ownWait(client string, n int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.bucketsOf(client).requests
	return of.Take(m.requests, n, m.now())
}

// spendOwn takes n tokens from the bucket of this process, even if it has fewer.
func (m *ClientLimiter) spendOwn(client string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bucketsOf(client).requests.Spend(m.requests, n, m.now())
}

// limitKey returns the name under which a client is limited. Unauthenticated addresses of one
// IPv6 /64 network share a limit, because one host usually has the whole network.
func limitKey(client string) string {
	text, unauthenticated := strings.CutPrefix(client, unauthenticatedPrefix)
	if !unauthenticated {
		return client
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || !ip.Is6() || ip.Is4In6() {
		return client
	}
	return unauthenticatedPrefix + netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

// bucketsOf returns the token buckets of a client. It creates them if the client has none.
func (m *ClientLimiter) bucketsOf(client string) *clientBuckets {
	client = limitKey(client)
	if e, known := m.clients[client]; known {
		m.recent.MoveToFront(e)
		return e.Value.(*clientBuckets)
	}
	if m.recent.Len() >= maxClients {
		delete(m.clients, m.recent.Remove(m.recent.Back()).(*clientBuckets).client)
	}
	c := &clientBuckets{client: client}
	m.clients[client] = m.recent.PushFront(c)
	return c
}

// AcquireWaitSlot counts a waiting or streaming request of a client until the returned function
// is called. Further calls of that function have no effect. The error is a *problem.HTTPError
// with status 429.
func (m *ClientLimiter) AcquireWaitSlot(client string) (leave func(), err error) {
	if m == nil || m.waiting == 0 {
		return func() {}, nil
	}
	client = limitKey(client)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waits[client] >= m.waiting {
		m.refused.WithLabelValues("waiting").Inc()
		return func() {}, limitExceeded(problem.TooManyWaiting, "waiting", fmt.Sprintf("You have %d waiting or streaming requests, the maximum. Wait until one ends, or read without wait.", m.waiting), m.waiting, 0, time.Second)
	}
	m.waits[client]++
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.waits[client]--; m.waits[client] == 0 {
			delete(m.waits, client)
		}
	}), nil
}
