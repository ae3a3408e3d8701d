package query

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/problem"
)

const (
	// maxUncounted is the size in bytes up to which a response is not counted: a
	// connection costs about as much by itself.
	maxUncounted = 16 << 10
	// clientShare is the part of the budget that one client may hold: 1/clientShare.
	clientShare = 2
	// DefaultResponseMemory is the budget in bytes where Config names none.
	DefaultResponseMemory = 256 << 20
)

// responseBudget bounds the memory in bytes that responses hold while they are
// written: of all clients, and of one client. A response holds its stored
// snapshots and the one document that is unpacked for it, until the client has
// read them or is disconnected.
//
// A response that is larger than a bound is admitted while nothing else counts
// against that bound, so that each document can be read under any setting.
type responseBudget struct {
	max, maxClient int64
	refused        *prometheus.CounterVec

	mu       sync.Mutex
	reserved int64
	clients  map[string]int64
}

func newResponseBudget(limit int64, reg prometheus.Registerer) *responseBudget {
	if limit <= 0 {
		limit = DefaultResponseMemory
	}
	b := &responseBudget{
		max: limit, maxClient: limit / clientShare, clients: map[string]int64{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "responses_refused_total", Help: "Reads answered 503 because responses that are being written hold query.maxResponseMemory, by bound: client or process.",
		}, []string{"bound"}),
	}
	for _, bound := range []string{"client", "process"} {
		b.refused.WithLabelValues(bound)
	}
	reg.MustRegister(b.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "response_memory_bytes", Help: "Memory of responses that are being written.",
	}, func() float64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return float64(b.reserved)
	}))
	return b
}

// reservation is the part of the budget that one response holds.
type reservation struct {
	budget *responseBudget
	client string
	bytes  int64
}

// reserve reserves n bytes for a response to the client. The error is a problem: 503
// with Retry-After.
func (b *responseBudget) reserve(client string, n int64) (reservation, error) {
	if n <= maxUncounted {
		return reservation{}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.clients[client]
	switch {
	case of > 0 && of+n > b.maxClient:
		b.refused.WithLabelValues("client").Inc()
		return reservation{}, overBudget(fmt.Sprintf("Responses that this client has not read yet hold %d bytes of memory; one client may hold %d. Read them first, or ask for fewer keys at once.", of, b.maxClient))
	case b.reserved > 0 && b.reserved+n > b.max:
		b.refused.WithLabelValues("process").Inc()
		return reservation{}, overBudget(fmt.Sprintf("Responses that are being written hold %d bytes of memory; query.maxResponseMemory allows %d. Retry later, or ask for fewer keys at once.", b.reserved, b.max))
	}
	b.reserved += n
	b.clients[client] = of + n
	return reservation{b, client, n}, nil
}

func overBudget(detail string) error {
	p := problem.New(http.StatusServiceUnavailable, "response-memory", detail)
	p.After = time.Second
	return p
}

// release returns n bytes to the budget, at most the bytes still held.
func (h *reservation) release(n int64) {
	n = min(n, h.bytes)
	if n <= 0 {
		return
	}
	h.bytes -= n
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reserved -= n
	if b.clients[h.client] -= n; b.clients[h.client] == 0 {
		delete(b.clients, h.client)
	}
}

// releaseAll returns everything that is still held.
func (h *reservation) releaseAll() { h.release(h.bytes) }
