package scheduler

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
)

type metrics struct {
	asked, taken, forward prometheus.Counter
	alone                 *prometheus.CounterVec
	late                  prometheus.Histogram
	rate, price           prometheus.Gauge
	first                 atomic.Int64 // when the entity is due that is due first, in nanoseconds; 0: nothing is to be asked for
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	of := prometheus.Labels{"source": source}
	late := observe.Histogram("prefetch_late_seconds", "How long after its due time an entity was claimed.", 1, 10, 60, 300, 1800, 7200, 43200)
	late.ConstLabels = of
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help, ConstLabels: of}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: of}
	}
	m := &metrics{
		asked:   prometheus.NewCounter(counter("prefetch_asked_total", "Entities that were asked for as they came due.")),
		taken:   prometheus.NewCounter(counter("prefetch_taken_over_total", "Entities that another scheduler had claimed and not asked for in time, and that were asked for in its place.")),
		forward: prometheus.NewCounter(counter("prefetch_brought_forward_total", "Entities of the adaptive mode that became due earlier, as the budget was idle.")),
		alone:   prometheus.NewCounterVec(counter("prefetch_left_alone_total", "Entities that were due and not asked for, by why."), []string{"why"}),
		late:    prometheus.NewHistogram(late),
		rate:    prometheus.NewGauge(gauge("prefetch_rate", "Calls a second that this scheduler may feed now.")),
		price:   prometheus.NewGauge(gauge("prefetch_price", "What a call must be worth in the adaptive mode, in reads that it keeps from seeing the past.")),
	}
	for _, why := range []string{fresh, held, inactive, waiting, off} {
		m.alone.WithLabelValues(why)
	}
	m.dueFirst(time.Now()) // until it has looked it may be late since it began
	// Computed as it is asked for: it goes on rising while nobody can look.
	rising := prometheus.NewGaugeFunc(gauge("prefetch_behind_seconds", "How long ago the entity was due that is due first; 0 while nothing is to be asked for."),
		func() float64 { return m.behind(time.Now()).Seconds() })
	reg.MustRegister(m.asked, m.taken, m.forward, m.alone, m.late, m.rate, m.price, rising)
	return m
}

// dueFirst says when the entity is due that is due first; zero if nothing is to be asked for.
func (m *metrics) dueFirst(at time.Time) {
	if at.IsZero() {
		m.first.Store(0)
		return
	}
	m.first.Store(at.UnixNano())
}

func (m *metrics) behind(now time.Time) time.Duration {
	if first := m.first.Load(); first != 0 {
		return max(0, now.Sub(time.Unix(0, first)))
	}
	return 0
}
