package access

import (
	"container/list"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxClients bounds the clients that are remembered; the oldest is forgotten first,
	// so that addresses made up can't fill the memory.
	maxClients = 100_000
)

// ClientLimiter bound what each client may ask of this process. A nil one bounds nobody.
type ClientLimiter struct {
	requests rate
	misses   rate // of keys that are looked for in the database; see missesOf
	waiting  int
	refused  *prometheus.CounterVec
	now      func() time.Time

	mu      sync.Mutex
	clients map[string]*list.Element // of recent
	recent  *list.List               // *meter; that of the last request is in front
	waits   map[string]int           // by client
}

// rate is so many calls in a window; 0 calls: any number.
type rate struct {
	calls  int
	window time.Duration
}

// meter is what one client has left.
type meter struct {
	client   string
	requests bucket
	misses   bucket
}

// NewClientLimiter returns the meters of limits that have been checked.
func NewClientLimiter(l Limits, reg prometheus.Registerer) *ClientLimiter {
	m := &ClientLimiter{
		waiting: l.Waiting, now: time.Now, clients: map[string]*list.Element{}, recent: list.New(), waits: map[string]int{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "access_limited_total", Help: "Requests that were refused since their client asked for too much, by limit.",
		}, []string{"limit"}),
	}
	m.requests.calls, m.requests.window, _ = l.Requests.parse()
	m.misses = missesOf(l.NewKeys)
	for _, limit := range []string{"requests", "misses", "new-keys", "outstanding", "waiting"} {
		m.refused.WithLabelValues(limit)
	}
	reg.MustRegister(m.refused)
	return m
}

// AllowRequests counts n requests of a client; an error, a *problem.HTTPError, says
// that none of them may be served.
func (m *ClientLimiter) AllowRequests(client string, n int) error {
	if m == nil || m.requests.calls == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if wait := m.meter(client).requests.take(m.requests, n, m.now()); wait > 0 {
		m.refused.WithLabelValues("requests").Inc()
		return limitExceeded("too-many-requests", "requests", fmt.Sprintf("This is more than %s. Wait, and ask for less.", m.requests), m.requests.calls, m.requests.window, wait)
	}
	return nil
}

func (r rate) String() string {
	return fmt.Sprintf("%d in %v", r.calls, r.window)
}

// limitKey returns the name under which a client is bounded. Whoever has one address
// of IPv6 has 2^64 of them, so that those of a /64 who are not asked share a bound.
func limitKey(client string) string {
	text, nameless := strings.CutPrefix(client, unauthenticatedPrefix)
	if !nameless {
		return client
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || !ip.Is6() || ip.Is4In6() {
		return client
	}
	return unauthenticatedPrefix + netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

// meter returns the client's meter, a new one if it was forgotten.
func (m *ClientLimiter) meter(client string) *meter {
	client = limitKey(client)
	if e, known := m.clients[client]; known {
		m.recent.MoveToFront(e)
		return e.Value.(*meter)
	}
	if m.recent.Len() >= maxClients {
		delete(m.clients, m.recent.Remove(m.recent.Back()).(*meter).client)
	}
	c := &meter{client: client}
	m.clients[client] = m.recent.PushFront(c)
	return c
}

// bucket holds what is left of a rate. It is full at first, and a call that asks
// for more than it can ever hold takes it all and leaves a debt.
type bucket struct {
	left float64
	at   time.Time
}

// take takes n, or says after how long there will be so many.
func (b *bucket) take(r rate, n int, now time.Time) (wait time.Duration) {
	full := float64(r.calls)
	if b.at.IsZero() {
		b.left = full
	} else if passed := now.Sub(b.at); passed > 0 {
		b.left = min(full, b.left+full*float64(passed)/float64(r.window))
	}
	b.at = now
	need := min(float64(n), full)
	if b.left < need {
		return max(1, time.Duration((need-b.left)/full*float64(r.window)))
	}
	b.left -= float64(n)
	return 0
}

// AcquireWaitSlot counts a request of a client that waits or streams, until leave is called,
// which may be done again. The error is as that of Request.
func (m *ClientLimiter) AcquireWaitSlot(client string) (leave func(), err error) {
	if m == nil || m.waiting == 0 {
		return func() {}, nil
	}
	client = limitKey(client)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waits[client] >= m.waiting {
		m.refused.WithLabelValues("waiting").Inc()
		return func() {}, limitExceeded("too-many-waiting", "waiting", fmt.Sprintf("%d requests of yours wait or stream. Wait until some have ended, or read without waiting.", m.waiting), m.waiting, 0, time.Second)
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
