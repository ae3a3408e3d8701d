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
	// maxUncounted is the maximum size in bytes of a response that does not count toward the
	// budget. The connection itself uses about as much memory.
	maxUncounted = 16 << 10
	// one client may use 1/clientShare of the budget
	clientShare = 2
	// DefaultResponseMemory is the default of Config.ResponseMemory, in bytes.
	DefaultResponseMemory = 256 << 20
)

// responseBudget limits the memory in bytes of responses being written, of all clients together
// and of each client. A response uses the memory of its stored snapshots and of one unpacked
// document, until the client has read them or is disconnected.
//
// A response that is larger than a limit is allowed if no other response counts toward that limit.
// So even the largest document can be read with any setting.
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
			Name: "responses_refused_total", Help: "Reads with status 503 because responses being written use query.maxResponseMemory, by bound: client or process.",
		}, []string{"bound"}),
	}
	for _, bound := range []string{"client", "process"} {
		b.refused.WithLabelValues(bound)
	}
	reg.MustRegister(b.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "response_memory_bytes", Help: "Memory of responses being written.",
	}, func() float64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return float64(b.reserved)
	}))
	return b
}

// reservation is the memory reserved for one response.
type reservation struct {
	budget *responseBudget
	client string
	bytes  int64
}

// reserve reserves n bytes for a response to the client. The error is a problem with status 503
// and Retry-After.
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
		return reservation{}, overBudget(fmt.Sprintf("Unread responses of this client use %d bytes of memory; the limit is %d. Read them first, or request fewer keys at once.", of, b.maxClient))
	case b.reserved > 0 && b.reserved+n > b.max:
		b.refused.WithLabelValues("process").Inc()
		return reservation{}, overBudget(fmt.Sprintf("Responses being written use %d bytes of memory; query.maxResponseMemory is %d. Retry later, or request fewer keys at once.", b.reserved, b.max))
	}
	b.reserved += n
	b.clients[client] = of + n
	return reservation{b, client, n}, nil
}

func overBudget(detail string) error {
	p := problem.New(http.StatusServiceUnavailable, problem.ResponseMemory, detail)
	p.After = time.Second
	return p
}

// release returns n bytes to the budget, but at most the bytes that are still reserved.
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

// releaseAll returns all remaining bytes to the budget.
func (h *reservation) releaseAll() { h.release(h.bytes) }
