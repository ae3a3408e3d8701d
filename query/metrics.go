package query

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

type metrics struct {
	requests *prometheus.HistogramVec
	reads    *prometheus.CounterVec
	age      *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_duration_seconds", Help: "Answers by route and status.",
			Buckets:                     []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
			NativeHistogramBucketFactor: 1.1,
		}, []string{"route", "method", "status"}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "reads_total", Help: "Reads by what the reader was told.",
		}, []string{"source", "facet", "freshness"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "snapshot_age_at_read_seconds", Help: "How long ago the snapshot that a reader got was checked.",
			Buckets:                     []float64{1, 60, 600, 1800, 3600, 7200, 21600, 86400, 604800},
			NativeHistogramBucketFactor: 1.1,
		}, []string{"source", "facet"}),
	}
	reg.MustRegister(m.requests, m.reads, m.age)
	return m
}

func (m *metrics) answered(route, method string, status int, took time.Duration) {
	if route == "" { // what a client makes up must not become a label
		route, method = "none", "none"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Observe(took.Seconds())
}

func (m *metrics) read(e schemas.Entity, f Freshness, s store.Snapshot, now time.Time) {
	m.reads.WithLabelValues(e.Source, e.Facet, string(f)).Inc()
	if f == Fresh || f == Stale {
		m.age.WithLabelValues(e.Source, e.Facet).Observe(now.Sub(s.CheckedAt).Seconds())
	}
}
