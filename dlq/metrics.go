package dlq

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/store/deadletters"
)

type metrics struct {
	handled *prometheus.CounterVec
	waiting prometheus.Gauge
}

func newMetrics(sources map[string]Source, reg prometheus.Registerer) *metrics {
	m := &metrics{
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dlq_handled_total", Help: "Dead letters replayed or purged by jobs of this process.",
		}, []string{"source", "outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dlq_jobs_waiting", Help: "DLQ jobs leased by this process that are blocked by an error and retried.",
		}),
	}
	for name := range sources {
		m.handled.WithLabelValues(name, deadletters.Replayed)
		m.handled.WithLabelValues(name, deadletters.Purged)
	}
	reg.MustRegister(m.handled, m.waiting)
	return m
}
