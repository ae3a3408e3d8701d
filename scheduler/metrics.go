package scheduler

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
)

type metrics struct {
	requested, takenOver, broughtForward prometheus.Counter
	skipped                              *prometheus.CounterVec
	delay                                prometheus.Histogram
	rate, price                          prometheus.Gauge
	firstDue                             atomic.Int64 // earliest due time of all entities, in Unix nanoseconds; 0 means none
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	of := prometheus.Labels{"source": source}
	late := observe.Histogram("prefetch_delay_seconds", "Time between the due time of an entity and its claim.", 1, 10, 60, 300, 1800, 7200, 43200)
	late.ConstLabels = of
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help, ConstLabels: of}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: of}
	}
	m := &metrics{
		requested:      prometheus.NewCounter(counter("prefetch_requested_total", "Entities that were requested when they were due.")),
		takenOver:      prometheus.NewCounter(counter("prefetch_taken_over_total", "Entities that were requested from the abandoned claim of another scheduler.")),
		broughtForward: prometheus.NewCounter(counter("prefetch_brought_forward_total", "Entities of the adaptive mode that were made due earlier while the budget was idle.")),
		skipped:        prometheus.NewCounterVec(counter("prefetch_skipped_total", "Entities that were due and not requested, by reason."), []string{"reason"}),
		delay:          prometheus.NewHistogram(late),
		rate:           prometheus.NewGauge(gauge("prefetch_rate", "Calls a second that this scheduler may enqueue now.")),
		price:          prometheus.NewGauge(gauge("prefetch_price", "Minimum value of a call in the adaptive mode, in outdated reads that it prevents.")),
	}
	for _, why := range []string{skipFresh, skipHeld, skipInactive, skipNotReady, skipOff} {
		m.skipped.WithLabelValues(why)
	}
	m.setFirstDue(time.Now()) // until the first tick, the metric is the time since the start
	// The value is computed at each scrape. So it rises while the scheduler can't read the
	// schedule.
	rising := prometheus.NewGaugeFunc(gauge("prefetch_lag_seconds", "Time since the earliest due time; 0 if no entity is due or prefetching is paused."),
		func() float64 { return m.lag(time.Now()).Seconds() })
	reg.MustRegister(m.requested, m.takenOver, m.broughtForward, m.skipped, m.delay, m.rate, m.price, rising)
	return m
}

// setFirstDue stores the earliest due time, from which the lag is computed; zero means that the lag is
// 0.
func (m *metrics) setFirstDue(at time.Time) {
	if at.IsZero() {
		m.firstDue.Store(0)
		return
	}
	m.firstDue.Store(at.UnixNano())
}

func (m *metrics) lag(now time.Time) time.Duration {
	if first := m.firstDue.Load(); first != 0 {
		return max(0, now.Sub(time.Unix(0, first)))
	}
	return 0
}
