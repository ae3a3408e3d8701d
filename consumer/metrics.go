package consumer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// metrics are the worker's, by the names of adr-013 §12.
type metrics struct {
	took      prometheus.Observer
	errors    *prometheus.CounterVec
	obsolete  *prometheus.CounterVec
	settled   *prometheus.CounterVec
	held      *prometheus.CounterVec
	inFlight  prometheus.Gauge
	upsert    prometheus.Histogram
	batch     prometheus.Histogram
	oldest    prometheus.Gauge
	database  prometheus.Gauge
	yielding  prometheus.Gauge
	suspended prometheus.Counter
}

func newMetrics(source string, lane schemas.Lane, reg prometheus.Registerer) *metrics {
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"source": source, "priority": string(lane)}, reg)
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "update_process_duration_seconds", Help: "From a record's dispatch to its end.",
		Buckets:                     []float64{.05, .1, .25, .5, 1, 2, 3, 5, 10, 30, 60, 300, 1800},
		NativeHistogramBucketFactor: 1.1,
	})
	m := &metrics{
		took: took,
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "update_process_error_total", Help: "Attempts that failed by class, and dead letters by reason.",
		}, []string{"reason"}),
		obsolete: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "obsolete_event_skipped_total", Help: "Requests that needed no fetch any more.",
		}, []string{"verdict"}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "settled_total", Help: "Requests by how they ended.",
		}, []string{"end"}),
		held: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "held_total", Help: "Failed attempts at the database, Redis or Kafka, which hold their records.",
		}, []string{"doing"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "records_in_flight", Help: "Records between their dispatch and their end.",
		}),
		upsert: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "db_upsert_duration_seconds", Help: "One batch of results, with its retries.",
			Buckets:                     []float64{.002, .005, .01, .025, .05, .1, .25, 1, 5, 30},
			NativeHistogramBucketFactor: 1.1,
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "db_batch_size", Help: "Results written together.", Buckets: []float64{1, 2, 5, 10, 20, 50, 100},
		}),
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m.oldest = gauge("oldest_uncommitted_seconds", "Age of the oldest record that is not committed.")
	m.database = gauge("db_circuit_breaker_state", "0 closed, 1 half open, 2 open: then nothing is fetched.")
	m.yielding = gauge("low_yielding", "1 while LOW stands back because HIGH is behind.")
	m.suspended = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "entities_suspended_total", Help: "Entities that nobody asks for any more after repeated dead letters.",
	})
	reg.MustRegister(took, m.errors, m.obsolete, m.settled, m.held, m.inFlight, m.upsert, m.batch,
		m.oldest, m.database, m.yielding, m.suspended)
	return m
}

func (m *metrics) skipped(v schemas.Verdict) {
	m.obsolete.WithLabelValues(string(v)).Inc()
	m.settled.WithLabelValues("skipped").Inc()
}

func (m *metrics) wrote(n int, took time.Duration, results []store.Result) {
	if results != nil {
		m.upsert.Observe(took.Seconds())
		m.batch.Observe(float64(n))
	}
}
