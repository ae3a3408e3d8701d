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
	// clientsMost and flightsMost bound what is remembered; the oldest is forgotten
	// first, so that addresses made up can't fill the memory.
	clientsMost = 100_000
	flightsMost = 100_000
	// flightLife is after how long a refresh counts as ended: who would say so may
	// have died.
	flightLife = 2 * time.Minute
)

// Meters bound what each client may ask of this process. A nil one bounds nobody.
type Meters struct {
	requests          rate
	misses            rate // of keys that are looked for in the database; see missesOf
	underWay, waiting int
	refused           *prometheus.CounterVec
	now               func() time.Time

	mu      sync.Mutex
	clients map[string]*list.Element       // of recent
	recent  *list.List                     // *meter; who asked last is in front
	flights map[flight]*list.Element       // of begun
	begun   *list.List                     // *flightOf; the oldest is in front
	on      map[string]map[flight]struct{} // by entity
	flying  map[string]int                 // by client
	waits   map[string]int                 // by client
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

// flight is a refresh that a client asked for.
type flight struct{ client, entity string }

type flightOf struct {
	flight
	ends time.Time
}

// NewMeters returns the meters of limits that have been checked.
func NewMeters(l Limits, reg prometheus.Registerer) *Meters {
	m := &Meters{
		underWay: l.UnderWay, waiting: l.Waiting, now: time.Now, clients: map[string]*list.Element{}, recent: list.New(),
		flights: map[flight]*list.Element{}, begun: list.New(), on: map[string]map[flight]struct{}{}, flying: map[string]int{}, waits: map[string]int{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "access_limited_total", Help: "Requests that were refused since their client asked for too much, by limit.",
		}, []string{"limit"}),
	}
	m.requests.calls, m.requests.window, _ = l.Requests.parse()
	m.misses = missesOf(l.NewKeys)
	for _, limit := range []string{"requests", "misses", "new-keys", "outstanding", "refreshes", "waiting"} {
		m.refused.WithLabelValues(limit)
	}
	reg.MustRegister(m.refused)
	return m
}

// Request counts n requests of a client; an error, a *problem.HTTPError, says
// that none of them may be served.
func (m *Meters) Request(client string, n int) error {
	if m == nil || m.requests.calls == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if wait := m.meter(client).requests.take(m.requests, n, m.now()); wait > 0 {
		m.refused.WithLabelValues("requests").Inc()
		return tooMany("too-many-requests", "requests", fmt.Sprintf("This is more than %s. Wait, and ask for less.", m.requests), m.requests.calls, m.requests.window, wait)
	}
	return nil
}

func (r rate) String() string {
	return fmt.Sprintf("%d in %v", r.calls, r.window)
}

// boundOf returns the name under which a client is bounded. Whoever has one address
// of IPv6 has 2^64 of them, so that those of a /64 who are not asked share a bound.
func boundOf(client string) string {
	text, nameless := strings.CutPrefix(client, unasked)
	if !nameless {
		return client
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || !ip.Is6() || ip.Is4In6() {
		return client
	}
	return unasked + netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

// meter returns the client's meter, a new one if it was forgotten.
func (m *Meters) meter(client string) *meter {
	client = boundOf(client)
	if e, known := m.clients[client]; known {
		m.recent.MoveToFront(e)
		return e.Value.(*meter)
	}
	if m.recent.Len() >= clientsMost {
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

// Begin counts a refresh that a client has asked for, once until it has Ended, is
// abandoned or two minutes have passed; begun: it was not under way for this
// client. The error is as that of Request.
func (m *Meters) Begin(client, entity string) (begun bool, err error) {
	if m == nil {
		return true, nil
	}
	client = boundOf(client)
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for e := m.begun.Front(); e != nil && (!now.Before(e.Value.(*flightOf).ends) || m.begun.Len() >= flightsMost); e = m.begun.Front() {
		m.land(e)
	}
	f := flight{client, entity}
	if _, known := m.flights[f]; known {
		return false, nil
	}
	if m.underWay > 0 && m.flying[client] >= m.underWay {
		m.refused.WithLabelValues("refreshes").Inc()
		return false, tooMany("too-many-refreshes", "refreshes", fmt.Sprintf("%d refreshes that you asked for are under way. Wait until some have ended.", m.underWay), m.underWay, 0, time.Second)
	}
	m.flights[f] = m.begun.PushBack(&flightOf{f, now.Add(flightLife)})
	if m.on[entity] == nil {
		m.on[entity] = map[flight]struct{}{}
	}
	m.on[entity][f] = struct{}{}
	m.flying[client]++
	return true, nil
}

// Abandon says that the refresh of an entity that this client began came to nothing.
// It may be under way for others all the same.
func (m *Meters) Abandon(client, entity string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, known := m.flights[flight{boundOf(client), entity}]; known {
		m.land(e)
	}
}

// Ended says that the refresh of an entity is over, for whoever asked for it.
func (m *Meters) Ended(entity string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for f := range m.on[entity] {
		m.land(m.flights[f])
	}
}

// land forgets a refresh.
func (m *Meters) land(e *list.Element) {
	f := m.begun.Remove(e).(*flightOf).flight
	delete(m.flights, f)
	if delete(m.on[f.entity], f); len(m.on[f.entity]) == 0 {
		delete(m.on, f.entity)
	}
	if m.flying[f.client]--; m.flying[f.client] == 0 {
		delete(m.flying, f.client)
	}
}

// Wait counts a request of a client that waits or streams, until leave is called,
// which may be done again. The error is as that of Request.
func (m *Meters) Wait(client string) (leave func(), err error) {
	if m == nil || m.waiting == 0 {
		return func() {}, nil
	}
	client = boundOf(client)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waits[client] >= m.waiting {
		m.refused.WithLabelValues("waiting").Inc()
		return func() {}, tooMany("too-many-waiting", "waiting", fmt.Sprintf("%d requests of yours wait or stream. Wait until some have ended, or read without waiting.", m.waiting), m.waiting, 0, time.Second)
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
