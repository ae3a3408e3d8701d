package limiter

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
)

// viewMetrics are the metrics that show the limiter's state in Redis.
type viewMetrics struct {
	remaining   *prometheus.GaugeVec
	limit       *prometheus.GaugeVec
	rampRatio   *prometheus.GaugeVec
	used        *prometheus.GaugeVec
	window      *prometheus.GaugeVec
	state       *prometheus.GaugeVec
	stateLosses prometheus.Counter

	mu    sync.Mutex // guards the fields below
	birth int64      // creation time of the Redis state that the gauges show
	shown time.Time  // when the gauges were last set; zero means that they are removed
}

func newViewMetrics(reg prometheus.Registerer) *viewMetrics {
	m := &viewMetrics{
		remaining: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_remaining", Help: "Calls that a policy allows now, by priority.",
		}, []string{"policy", "priority"}),
		limit: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_limit", Help: "Limit of a policy in calls per window.",
		}, []string{"policy"}),
		rampRatio: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_ramp_ratio", Help: "Share of the full rate that is in use: 1, or less during the ten seconds after a backoff.",
		}, nil),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_used", Help: "Calls used in a policy's window; missing for windows that are kept in GCRA partitions.",
		}, []string{"policy"}),
		window: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_window_seconds", Help: "Length of a policy's window.",
		}, []string{"policy"}),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_state", Help: "1 for the current state of the source's limiter, 0 for the others.",
		}, []string{"state"}),
		stateLosses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_state_losses_total", Help: "Losses of the limiter's state in Redis, as seen by this process.",
		}),
	}
	reg.MustRegister(m.remaining, m.limit, m.used, m.window, m.rampRatio, m.state, m.stateLosses)
	return m
}

// show sets the gauges that mirror the state in Redis.
func (m *viewMetrics) show(v View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.birth != 0 && v.birth != m.birth {
		m.stateLosses.Inc()
	}
	m.birth, m.shown = v.birth, time.Now()
	m.rampRatio.WithLabelValues().Set(v.RampRatio)
	for _, name := range viewStates {
		is := 0.0
		if name == v.State {
			is = 1
		}
		m.state.WithLabelValues(string(name)).Set(is)
	}
	for _, p := range v.Policies {
		m.window.WithLabelValues(p.Name).Set(p.length.Seconds())
		if p.Used != nil {
			m.used.WithLabelValues(p.Name).Set(float64(*p.Used))
		} else {
			m.used.DeleteLabelValues(p.Name) // the number of used calls is unknown, so its gauge is removed
		}
		m.limit.WithLabelValues(p.Name).Set(float64(p.Limit))
		m.remaining.WithLabelValues(p.Name, string(schemas.High)).Set(float64(p.Remaining))
		m.remaining.WithLabelValues(p.Name, string(schemas.Low)).Set(float64(p.RemainingForLow))
	}
}

// viewMetricsTTL is how long the gauges of Redis' state are kept without an update: three report
// intervals of an idle process.
const viewMetricsTTL = 3 * idleReportInterval

// fade removes the gauges of Redis' state when they are outdated. Other processes then show newer
// values.
func (m *viewMetrics) fade(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shown.IsZero() || now.Sub(m.shown) <= viewMetricsTTL {
		return
	}
	m.shown = time.Time{}
	for _, g := range []*prometheus.GaugeVec{m.rampRatio, m.state, m.window, m.used, m.limit, m.remaining} {
		g.Reset()
	}
}
