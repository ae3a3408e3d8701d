package dlq

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/store"
)

type metrics struct {
	handled *prometheus.CounterVec
	waiting prometheus.Gauge
}

func newMetrics(sources map[string]Source, reg prometheus.Registerer) *metrics {
	m := &metrics{
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dlq_handled_total", Help: "Dead letters that jobs worked on here have handled.",
		}, []string{"source", "outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dlq_jobs_waiting", Help: "Jobs on dead letters that are worked on here and can't go on.",
		}),
	}
	for name := range sources {
		m.handled.WithLabelValues(name, store.Replayed)
		m.handled.WithLabelValues(name, store.Purged)
	}
	reg.MustRegister(m.handled, m.waiting)
	return m
}
