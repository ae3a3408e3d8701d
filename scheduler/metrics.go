package scheduler

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
)

type metrics struct {
	asked        prometheus.Counter
	late         prometheus.Histogram
	rate, behind prometheus.Gauge
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	of := prometheus.Labels{"source": source}
	late := observe.Histogram("prefetch_late_seconds", "How long after its due time an entity was claimed.", 1, 10, 60, 300, 1800, 7200, 43200)
	late.ConstLabels = of
	m := &metrics{
		asked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prefetch_asked_total", Help: "Entities that were asked for as they came due.", ConstLabels: of,
		}),
		late: prometheus.NewHistogram(late),
		rate: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prefetch_rate", Help: "Calls a second that may be fed now.", ConstLabels: of,
		}),
		behind: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prefetch_behind_seconds", Help: "Since when the entity that is due first is due.", ConstLabels: of,
		}),
	}
	reg.MustRegister(m.asked, m.late, m.rate, m.behind)
	return m
}
