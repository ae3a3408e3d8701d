package changes

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ told, triggered, rested prometheus.Counter }

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	of := prometheus.Labels{"source": source}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: of})
	}
	m := &metrics{
		counter("changes_told_total", "Changes that were told on the source's change topic."),
		counter("triggers_asked_total", "Refreshes of a facet that were asked for because another one had changed."),
		counter("triggers_rested_total", "Triggers that were left out since the facet had been refreshed a moment before."),
	}
	reg.MustRegister(m.told, m.triggered, m.rested)
	return m
}
