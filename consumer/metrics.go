package consumer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/links"
	"github.com/freshet/freshet/store"
)

// metrics holds the worker's metrics, with the names of adr-013 §12; see docs/metrics.md.
type metrics struct {
	duration           prometheus.Observer
	latency            prometheus.Observer
	upstream           map[source.Class]prometheus.Observer
	calls              map[string]prometheus.Counter // number of calls by outcome (source.CallResult.Outcome)
	errors             *prometheus.CounterVec
	obsolete           *prometheus.CounterVec
	aliases            *prometheus.CounterVec
	links              *prometheus.CounterVec
	walks              walkMetrics
	settled            *prometheus.CounterVec
	dependencyFailures *prometheus.CounterVec
	upsert             prometheus.Observer
	derive             prometheus.Observer
	batch              prometheus.Observer
	oldest             prometheus.Gauge
	database           prometheus.Gauge
	yielding           prometheus.Gauge
	suspended          prometheus.Counter
	redacted           prometheus.Counter
}

// Values of the label `end` of settled_total for requests whose fetch result was not written.
const (
	endRetrying   = "retrying"
	endDeadLetter = "dead_letter"
	endSkipped    = "skipped"
)

// Values of the label outcome of links_found_total. followed: a trigger was stored for the key.
// invalid: the text is no valid key. excess: the content has more keys than maxKeys. too_deep: the
// request has the maximum depth.
const (
	linkFollowed = "followed"
	linkInvalid  = "invalid"
	linkExcess   = "excess"
	linkTooDeep  = "too_deep"
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
			"From the request of a refresh to its stored snapshot or HTTP 404; compares the clocks of two machines.", seconds...)),
		errors:             counters("update_process_error_total", "Failed attempts by class, and dead letters by reason.", "reason"),
		obsolete:           counters("obsolete_event_skipped_total", "Requests that no longer needed a fetch.", "verdict"),
		settled:            counters("settled_total", "Settled requests by end.", "end"),
		aliases:            counters("alias_lookups_total", "Look-ups of params whose value comes from another facet, by result.", "result"),
		links:              counters("links_found_total", "Different keys in changed raw content, by outcome.", "outcome"),
		dependencyFailures: counters("dependency_failures_total", "Failed calls of the database, Redis or Kafka; their records wait while the calls are retried.", "operation"),
		upsert: histogram(observe.Histogram("db_upsert_duration_seconds", "One batch of results, with its retries.",
			.002, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30)),
		derive:   histogram(observe.Histogram("derive_duration_seconds", "Computation of one content of a derived facet.", seconds...)),
		batch:    histogram(observe.Histogram("db_batch_size", "Results written together.", 1, 2, 5, 10, 20, 50, 100)),
		database: gauge("db_circuit_breaker_state", "0 closed, 1 half-open, 2 open; nothing is fetched unless it is closed."),
		yielding: gauge("low_yielding", "1 while LOW yields because HIGH is behind."),
		upstream: map[source.Class]prometheus.Observer{},
		calls:    map[string]prometheus.Counter{},
	}
	ended := counters("upstream_calls_total", "Ended upstream calls by outcome.", "outcome")
	for _, outcome := range source.CallOutcomes {
		m.calls[outcome] = ended.WithLabelValues(outcome)
	}
	calls := prometheus.NewHistogramVec(observe.Histogram("upstream_duration_seconds",
		"From sending a call to the end of its answer, by the class of the attempt's outcome.",
		.05, .1, .25, .5, 1, 2, 3, 5, 10, 30), []string{"class"})
	m.oldest = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kafka_consumer_lag_seconds", Help: "Age of the oldest uncommitted record in this process's partitions; 0 if there is none.",
		ConstLabels: prometheus.Labels{"topic": schemas.RequestTopic(name, lane), "group": schemas.Group(name, lane)},
	})
	m.suspended = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "entities_suspended_total", Help: "Entities that are no longer requested after repeated dead letters.",
	})
	m.redacted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "credentials_redacted_total", Help: "Credentials of the source that were replaced in content before it was stored.",
	})
	reg.MustRegister(calls, m.oldest, m.suspended, m.redacted)
	m.walks = newWalkMetrics(counters)
	m.initLabels(calls)
	return m
}

// registerUse registers the gauges of the memory and the slots that the worker uses. Their values are
// read at each scrape.
func registerUse(name string, lane schemas.Lane, reg prometheus.Registerer, b *memoryBudget, slots *slotQueue) {
	labels := prometheus.Labels{"source": name, "priority": string(lane)}
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "upstream_body_bytes", Help: "Memory reserved for response bodies; one entity at a time may exceed the configured limit.", ConstLabels: labels,
		}, func() float64 { return float64(b.inUse()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "records_in_flight", Help: "Records that occupy a slot.", ConstLabels: labels,
		}, func() float64 { return float64(slots.used()) }),
	)
}

// initLabels creates a series with value 0 for each label value, because Prometheus does not see
// the first increment of a series that did not exist.
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
	for _, verdict := range []schemas.Verdict{schemas.Satisfied, schemas.Superseded, schemas.Failed, schemas.Cancelled} {
		m.obsolete.WithLabelValues(string(verdict))
	}
	for _, end := range []string{endRetrying, endDeadLetter, endSkipped} {
		m.settled.WithLabelValues(end)
	}
	for _, result := range []string{aliasHit, aliasNotFound, aliasUnchanged, aliasExpired, aliasMissing, aliasDeadCheck} {
		m.aliases.WithLabelValues(result)
	}
	for _, outcome := range []string{linkFollowed, linkInvalid, linkExcess, linkTooDeep} {
		m.links.WithLabelValues(outcome)
	}
	for result := store.Touched; result < store.BaseMissing; result++ {
		m.settled.WithLabelValues(result.String())
	}
	for _, doing := range []string{opReachDB, opAliases, opRequestAlias, opStates, opStatus, opPeek, opWrite, opFail, opDeadLetters, opSettle, opWalk, opDerive} {
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

// requestStored counts a request whose fetch result was written.
func (m *metrics) requestStored(r store.Result, requestedAt time.Time) {
	m.settled.WithLabelValues(r.String()).Inc()
	if !requestedAt.IsZero() { // a record that another program produced may lack the time
		m.latency.Observe(max(0, time.Since(requestedAt).Seconds()))
	}
}

// linksFound counts the links in changed content. `followed` is true if they are requested.
func (m *metrics) linksFound(found links.Found, followed bool) {
	outcome := linkFollowed
	if !followed {
		outcome = linkTooDeep
	}
	m.links.WithLabelValues(outcome).Add(float64(len(found.Keys)))
	m.links.WithLabelValues(linkInvalid).Add(float64(found.Invalid))
	m.links.WithLabelValues(linkExcess).Add(float64(found.Excess))
}

// callsEnded records the durations of an attempt's calls.
func (m *metrics) callsEnded(class source.Class, took []time.Duration) {
	for _, d := range took {
		m.upstream[class].Observe(d.Seconds())
	}
}
