package limiter

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

// metrics are the limiter's Prometheus metrics (names from adr-013 §12).
type metrics struct {
	acquired          map[schemas.Lane]prometheus.Counter
	rejected          map[schemas.Lane]prometheus.Counter
	waited            map[schemas.Lane]prometheus.Observer
	lapsed            prometheus.Counter
	calls             prometheus.Counter
	failures          prometheus.Counter
	backoffs          prometheus.Counter
	waiting           map[schemas.Lane]prometheus.Gauge
	jitter            prometheus.Gauge
	breakerOpen       prometheus.Gauge
	scopeBreakersOpen prometheus.Gauge
	scopesExhausted   prometheus.Gauge
	second            perSecond
	allowed           prometheus.Gauge
	view              *viewMetrics
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"source": source}, reg)
	acquired := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_acquired_total", Help: "Permits spent, each on one upstream call.",
	}, []string{"priority"})
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_rejected_total", Help: "Permits that were not granted at once because their slot is too far in the future; the caller asks again.",
	}, []string{"priority"})
	waited := prometheus.NewHistogramVec(observe.Histogram("rate_limiter_wait_seconds", "How long a call waited for its permit.",
		.001, .005, .02, .1, .5, 2, 10, 60, 300, 1800), []string{"priority"})
	waiting := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rate_limiter_waiting", Help: "Calls that wait for their permit in this process.",
	}, []string{"priority"})
	m := &metrics{
		waiting: map[schemas.Lane]prometheus.Gauge{},
		jitter: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_jitter_seconds", Help: "Jitter of the calls on their way to the upstream, as measured last.",
		}),
		allowed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_jitter_allowed_seconds", Help: "Configured jitter; if the measured jitter is larger, the upstream can receive more calls than its limit.",
		}),
		breakerOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_breaker_open", Help: "1 while the source's circuit breaker is open, as known by this process, 0 otherwise.",
		}),
		scopeBreakersOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_scope_breakers_open", Help: "Open circuit breakers of credentials, endpoints and resources, as known by this process.",
		}),
		scopesExhausted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_scopes_exhausted", Help: "Values of policy scopes without remaining units, as known by this process.",
		}),
		view:     newViewMetrics(reg),
		acquired: map[schemas.Lane]prometheus.Counter{},
		rejected: map[schemas.Lane]prometheus.Counter{},
		waited:   map[schemas.Lane]prometheus.Observer{},
		lapsed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_lapsed_total", Help: "Permits that expired before they were spent.",
		}),
		calls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_redis_calls_total", Help: "Calls to Redis for permits.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_redis_failures_total", Help: "Failed calls to Redis for permits.",
		}),
		backoffs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_backoffs_total", Help: "Backoffs that this process requested.",
		}),
	}
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		m.acquired[lane] = acquired.WithLabelValues(string(lane))
		m.rejected[lane] = rejected.WithLabelValues(string(lane))
		m.waiting[lane] = waiting.WithLabelValues(string(lane))
		m.waited[lane] = waited.WithLabelValues(string(lane))
	}
	reg.MustRegister(acquired, rejected, waited, m.lapsed, m.calls, m.failures, m.backoffs,
		waiting, m.jitter, m.breakerOpen, m.scopeBreakersOpen, m.scopesExhausted, m.allowed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rate_limiter_rps", Help: "Calls sent in the last full second of the clock; the sum over all processes is the source's rate.",
		}, func() float64 { return float64(m.second.last(time.Now())) }))
	return m
}

// scopes counts the open breakers and the exhausted buckets of a report.
func (m *metrics) scopes(all []ScopeView) {
	open, empty := 0.0, 0.0
	for _, s := range all {
		switch {
		case s.BreakerOpen:
			open++
		case s.Remaining != nil && *s.Remaining <= 0:
			empty++
		}
	}
	m.scopeBreakersOpen.Set(open)
	m.scopesExhausted.Set(empty)
}

// spent counts a spent permit.
func (m *metrics) spent(lane schemas.Lane, now time.Time) {
	m.acquired[lane].Inc()
	m.second.count(now)
}

// perSecond counts calls in each second of the wall clock. The seconds are the same in all
// processes, so the counts of all processes for one second can be added.
type perSecond struct {
	mu           sync.Mutex
	at           int64 // the second that is being counted, as Unix time
	calls, whole int64 // calls in the second `at`, and in the whole second before it
}

func (s *perSecond) count(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to := now.Unix(); to == s.at-1 { // the goroutine has waited for the lock, so the call belongs to the previous second
		s.whole++
		return
	}
	s.turn(now.Unix())
	s.calls++
}

// last returns the number of calls in the full second before the current one.
func (s *perSecond) last(now time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Unix() != s.at-1 {
		s.turn(now.Unix())
	}
	return s.whole
}

// turn begins to count the calls of the second with the Unix time `to`. The caller holds s.mu.
func (s *perSecond) turn(to int64) {
	switch to {
	case s.at:
		return
	case s.at + 1:
		s.whole = s.calls
	default: // the process made no call for over a second, or its clock was set
		s.whole = 0
	}
	s.at, s.calls = to, 0
}
