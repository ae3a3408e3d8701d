package credits

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	held    prometheus.Gauge
	ends    *prometheus.CounterVec
	refused prometheus.Counter
	runs    *prometheus.CounterVec
	seconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "credits_held", Help: "Credits that the open holds of all clients have set aside, at the last run of the reaper."}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "credits_ends_total", Help: "Holds that this process has ended, by outcome: captured, released or expired.",
		}, []string{"how"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "credits_refused_total", Help: "Refreshes refused because their client had too few credits."}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "reaper_runs_total", Help: "Runs of the reaper of holds, by result: ok, partial (some clients were skipped) or failed.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "reaper_seconds", Help: "Duration of a run of the reaper of holds.", Buckets: []float64{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100},
		}),
	}
	for _, state := range []State{Captured, Released, Expired} {
		m.ends.WithLabelValues(state.label())
	}
	for _, result := range []string{"ok", "partial", "failed"} {
		m.runs.WithLabelValues(result)
	}
	reg.MustRegister(m.held, m.ends, m.refused, m.runs, m.seconds)
	return m
}
