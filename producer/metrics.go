package producer

import "github.com/prometheus/client_golang/prometheus"

// metrics are the producer's, by the names of adr-013 §12.
type metrics struct {
	outcomes   *prometheus.CounterVec
	hits       prometheus.Counter
	upgrades   prometheus.Counter
	conflicts  prometheus.Counter
	sendFailed prometheus.Counter
	redis      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coalesced_total", Help: "Wishes for a refresh by what coalescing decided; ERROR: Redis or the buffer refused.",
		}, []string{"source", "priority", "outcome"}),
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dedup_coalesce_hit_total", Help: "Wishes covered by a request that was already under way.",
		}),
		upgrades: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dedup_upgrade_total", Help: "LOW requests that a HIGH one overtook.",
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dedup_lock_conflict_total", Help: "Locks that were another's, or gone, when Kafka had answered for their record.",
		}),
		sendFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kafka_producer_send_failed_total", Help: "Records that Kafka did not acknowledge.",
		}),
	}
	m.redis = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "redis_circuit_breaker_state", Help: "0 closed, 1 half open, 2 open: then no refresh is asked for.",
	})
	reg.MustRegister(m.outcomes, m.hits, m.upgrades, m.conflicts, m.sendFailed, m.redis)
	return m
}

func (m *metrics) observe(w Request, r Result) {
	outcome := string(r.Outcome)
	switch r.Outcome {
	case AlreadyProcessing, Pending:
		m.hits.Inc()
	case Upgraded:
		m.upgrades.Inc()
	case Published, Held, Cooling, TooManyOutstanding, TooManyNewKeys, refusedOutcome:
	case "":
		outcome = "ERROR"
	}
	m.outcomes.WithLabelValues(w.Entity.Source, string(w.Lane), outcome).Inc()
}
