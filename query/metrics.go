package query

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

type metrics struct {
	requests   *prometheus.HistogramVec
	reads      *prometheus.CounterVec
	age        *prometheus.HistogramVec
	snapshots  *prometheus.CounterVec
	breaker    prometheus.Gauge
	connected  prometheus.Gauge
	heldReads  prometheus.Counter
	recorded   *prometheus.CounterVec
	unrecorded *prometheus.CounterVec
	timedOut   prometheus.Counter

	byRoute memo[routeLabels, prometheus.Observer]
	byRead  memo[readLabels, readMetrics]

	fromStore, fromMemory, fromFallback, fromStatic prometheus.Counter
	unrecordedFull, unrecordedFailed                prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewHistogramVec(observe.Histogram("http_request_duration_seconds", "Responses by route and status.",
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5), []string{"route", "method", "status"}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "reads_total", Help: "Reads by freshness of the response.",
		}, []string{"source", "facet", "freshness"}),
		age: prometheus.NewHistogramVec(observe.Histogram("snapshot_age_at_read_seconds", "Time since the snapshot in a response was checked against the upstream.",
			1, 60, 600, 1800, 3600, 7200, 21600, 86400, 604800), []string{"source", "facet"}),
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "snapshots_read_total", Help: "Snapshots read, by origin: store, memory (valid cache entry), static (file), or fallback (outdated cache entry, because the store failed or did not respond).",
		}, []string{"from"}),
		breaker: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "reads_circuit_breaker_state", Help: "Circuit breaker for database reads: 0 closed, 1 half-open, 2 open.",
		}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "settle_subscription_connected", Help: "1 while subscribed to settle messages in Redis; 0 while disconnected, when cache entries are valid for 1 s only.",
		}),
	}
	m.heldReads = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "reads_held_total", Help: "Reads with status 503 because nothing is stored and the entity is held after upstream failures.",
	})
	m.recorded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "reads_recorded_total", Help: "Reads of prefetched facets that were recorded for the scheduler.",
	}, []string{"source"})
	m.unrecorded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "reads_unrecorded_total", Help: "Reads of prefetched facets that were not recorded, by reason: full (too many entities in one interval) or failed.",
	}, []string{"reason"})
	m.timedOut = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "responses_timed_out_total", Help: "Responses aborted because the client did not read 64 KiB within 10 s.",
	})
	m.unrecordedFull, m.unrecordedFailed = m.unrecorded.WithLabelValues("full"), m.unrecorded.WithLabelValues("failed")
	m.fromStore, m.fromMemory, m.fromFallback = m.snapshots.WithLabelValues("store"), m.snapshots.WithLabelValues("memory"), m.snapshots.WithLabelValues("fallback")
	m.fromStatic = m.snapshots.WithLabelValues("static")
	reg.MustRegister(m.requests, m.reads, m.age, m.snapshots, m.breaker, m.connected, m.heldReads, m.recorded, m.unrecorded, m.timedOut)
	return m
}

// routeLabels are the Prometheus labels of the metric of responses. `readLabels` are the labels of the
// metrics of reads.
type (
	routeLabels struct {
		path, method string
		status       int
	}
	readLabels struct {
		source, facet string
		freshness     store.Freshness
	}
	readMetrics struct {
		count prometheus.Counter
		age   prometheus.Observer
	}
)

func (m *metrics) observeResponse(path, method string, status int, took time.Duration) {
	// A client may send any text as the method, but a label must have a limited set of values.
	method = knownMethod(method)
	if path == "" {
		path, method = "none", "none"
	}
	m.byRoute.get(routeLabels{path, method, status}, func() prometheus.Observer {
		return m.requests.WithLabelValues(path, method, strconv.Itoa(status))
	}).Observe(took.Seconds())
}

func (m *metrics) observeRead(e schemas.Entity, v view) {
	of := m.byRead.get(readLabels{e.Source, e.Facet, v.freshness}, func() readMetrics {
		return readMetrics{m.reads.WithLabelValues(e.Source, e.Facet, string(v.freshness)), m.age.WithLabelValues(e.Source, e.Facet)}
	})
	of.count.Inc()
	if v.freshness == store.Fresh || v.freshness == store.Stale {
		of.age.Observe(v.at.Sub(v.CheckedAt).Seconds())
	}
}

// knownMethod returns the method if it is a standard HTTP method, else "none".
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "none"
}

// memo caches metrics by their labels. The lookup in the Prometheus client allocates memory, which
// would cost one allocation per response.
type memo[K comparable, V any] struct {
	mu    sync.Mutex
	known atomic.Pointer[map[K]V] // map of the known metrics; a new key replaces it by a copy
}

func (m *memo[K, V]) get(k K, find func() V) V {
	if known := m.known.Load(); known != nil {
		if v, ok := (*known)[k]; ok {
			return v
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[K]V{}
	if known := m.known.Load(); known != nil {
		maps.Copy(next, *known)
	}
	v := find()
	next[k] = v
	m.known.Store(&next)
	return v
}
