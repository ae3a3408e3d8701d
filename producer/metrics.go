package producer

import "github.com/prometheus/client_golang/prometheus"

// metrics are the producer's Prometheus metrics. Their names are defined in adr-013 §12.
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
			Name: "coalesced_total", Help: "Update requests by outcome of coalescing; ERROR: Redis failed or the buffer is full.",
		}, []string{"source", "priority", "outcome"}),
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dedup_coalesce_hit_total", Help: "Update requests covered by a request in flight.",
		}),
		upgrades: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dedup_upgrade_total", Help: "LOW requests in flight that were upgraded by a HIGH request.",
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dedup_lock_conflict_total", Help: "Locks already replaced or released when Kafka acknowledged their record.",
		}),
		sendFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kafka_producer_send_failed_total", Help: "Records that Kafka did not acknowledge.",
		}),
	}
	m.redis = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "redis_circuit_breaker_state", Help: "Circuit breaker for Redis: 0 closed, 1 half-open, 2 open (no update requests are enqueued).",
	})
	reg.MustRegister(m.outcomes, m.hits, m.upgrades, m.conflicts, m.sendFailed, m.redis)
	return m
}

func (m *metrics) observe(req Request, r Result) {
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
	m.outcomes.WithLabelValues(req.Entity.Source, string(req.Lane), outcome).Inc()
}
