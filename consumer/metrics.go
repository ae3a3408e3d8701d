package consumer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// metrics are the worker's, by the names of adr-013 §12; docs/metrics.md says what
// each is.
type metrics struct {
	duration           prometheus.Observer
	latency            prometheus.Observer
	upstream           map[source.Class]prometheus.Observer
	errors             *prometheus.CounterVec
	obsolete           *prometheus.CounterVec
	settled            *prometheus.CounterVec
	dependencyFailures *prometheus.CounterVec
	inFlight           prometheus.Gauge
	upsert             prometheus.Observer
	batch              prometheus.Observer
	oldest             prometheus.Gauge
	database           prometheus.Gauge
	yielding           prometheus.Gauge
	suspended          prometheus.Counter
	redacted           prometheus.Counter
}

// The ends of requests that are no results of a write.
const (
	endRetrying   = "retrying"
	endDeadLetter = "dead_letter"
	endSkipped    = "skipped"
)

func newMetrics(name string, lane schemas.Lane, reg prometheus.Registerer) *metrics {
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"source": name, "priority": string(lane)}, reg)
	histogram := func(o prometheus.HistogramOpts) prometheus.Observer {
		h := prometheus.NewHistogram(o)
		reg.MustRegister(h)
		return h
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	seconds := []float64{.05, .1, .25, .5, 1, 2, 3, 5, 10, 30, 60, 300, 1800}
	m := &metrics{
		duration: histogram(observe.Histogram("update_process_duration_seconds", "From a record's dispatch to its end.", seconds...)),
		latency: histogram(observe.Histogram("update_latency_seconds",
			"From when a refresh was asked for to its snapshot or absence; compares the clocks of two machines.", seconds...)),
		errors:             counters("update_process_error_total", "Attempts that failed by class, and dead letters by reason.", "reason"),
		obsolete:           counters("obsolete_event_skipped_total", "Requests that needed no fetch any more.", "verdict"),
		settled:            counters("settled_total", "Requests by how they ended.", "end"),
		dependencyFailures: counters("dependency_failures_total", "Failed attempts at the database, Redis or Kafka, which hold their records.", "operation"),
		inFlight:           gauge("records_in_flight", "Records that occupy a slot of the worker."),
		upsert: histogram(observe.Histogram("db_upsert_duration_seconds", "One batch of results, with its retries.",
			.002, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30)),
		batch:    histogram(observe.Histogram("db_batch_size", "Results written together.", 1, 2, 5, 10, 20, 50, 100)),
		database: gauge("db_circuit_breaker_state", "0 closed, 1 half open, 2 open: then nothing is fetched."),
		yielding: gauge("low_yielding", "1 while LOW stands back because HIGH is behind."),
		upstream: map[source.Class]prometheus.Observer{},
	}
	calls := prometheus.NewHistogramVec(observe.Histogram("upstream_duration_seconds",
		"From the moment that a call was sent to the whole of its answer, by what the attempt's answers mean.",
		.05, .1, .25, .5, 1, 2, 3, 5, 10, 30), []string{"class"})
	m.oldest = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kafka_consumer_lag_seconds", Help: "Age of the oldest record that is not committed, of the partitions of this process; 0 if there is none.",
		ConstLabels: prometheus.Labels{"topic": schemas.RequestTopic(name, lane), "group": schemas.Group(name, lane)},
	})
	m.suspended = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "entities_suspended_total", Help: "Entities that nobody asks for any more after repeated dead letters.",
	})
	m.redacted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "credentials_redacted_total", Help: "Credentials of the source that were found in content, and replaced before it was stored.",
	})
	reg.MustRegister(calls, m.oldest, m.suspended, m.redacted)
	m.initLabels(calls)
	return m
}

// registerBodyBytes has the registry tell how many bytes of bodies are in memory.
func registerBodyBytes(name string, lane schemas.Lane, reg prometheus.Registerer, b *memoryBudget) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "upstream_body_bytes", Help: "Memory reserved for bodies of answers; workers' bytes is its limit, which one entity may exceed.",
		ConstLabels: prometheus.Labels{"source": name, "priority": string(lane)},
	}, func() float64 { return float64(b.inUse()) }))
}

// initLabels has every label be there from the start: the first increment of a counter
// that was not there is none to Prometheus.
func (m *metrics) initLabels(calls *prometheus.HistogramVec) {
	for _, class := range source.Classes {
		m.upstream[class] = calls.WithLabelValues(string(class))
		if class.Failed() {
			m.errors.WithLabelValues(string(class))
		}
	}
	for _, reason := range schemas.DeadLetterReasons {
		m.errors.WithLabelValues(string(reason))
	}
	for _, verdict := range []schemas.Verdict{schemas.Satisfied, schemas.Superseded, schemas.Failed} {
		m.obsolete.WithLabelValues(string(verdict))
	}
	for _, end := range []string{endRetrying, endDeadLetter, endSkipped} {
		m.settled.WithLabelValues(end)
	}
	for result := store.Touched; result < store.BaseMissing; result++ {
		m.settled.WithLabelValues(result.String())
	}
	for _, doing := range []string{opReachDB, opStates, opStatus, opPeek, opWrite, opFail, opDeadLetters, opSettle} {
		m.dependencyFailures.WithLabelValues(doing)
	}
}

func (m *metrics) skipped(v schemas.Verdict) {
	m.obsolete.WithLabelValues(string(v)).Inc()
	m.settled.WithLabelValues(endSkipped).Inc()
}

func (m *metrics) batchWritten(n int, took time.Duration, results []store.Result) {
	if results != nil {
		m.upsert.Observe(took.Seconds())
		m.batch.Observe(float64(n))
	}
}

// requestStored counts a request that ended with what its fetch brought.
func (m *metrics) requestStored(r store.Result, asked time.Time) {
	m.settled.WithLabelValues(r.String()).Inc()
	if !asked.IsZero() { // as in a record that somebody else has written
		m.latency.Observe(max(0, time.Since(asked).Seconds()))
	}
}

// callsEnded notes how long an attempt's calls took.
func (m *metrics) callsEnded(class source.Class, took []time.Duration) {
	for _, d := range took {
		m.upstream[class].Observe(d.Seconds())
	}
}
