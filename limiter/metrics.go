package limiter

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

// metrics are the limiter's, by the names of adr-013 §12.
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
	remaining         *prometheus.GaugeVec
	limit             *prometheus.GaugeVec
	rampRatio         *prometheus.GaugeVec
	used              *prometheus.GaugeVec
	window            *prometheus.GaugeVec
	state             *prometheus.GaugeVec
	breakerOpen       prometheus.Gauge
	scopeBreakersOpen prometheus.Gauge
	scopesExhausted   prometheus.Gauge
	second            perSecond
	allowed           prometheus.Gauge
	stateLosses       prometheus.Counter

	mu    sync.Mutex // of what follows
	birth int64      // of the state that was shown last
	shown time.Time  // when; zero while nothing is shown
}

// viewStates are those that a View may show.
var viewStates = []string{"flowing", "ramping", "backing-off", stateBreakerOpen, "stopped", stateQuietPeriod, stateRestoringCount, stateUnused}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"source": source}, reg)
	acquired := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_acquired_total", Help: "Permits spent, each on one upstream call.",
	}, []string{"priority"})
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_rejected_total", Help: "Permits asked for that lay beyond the horizon; their callers come back.",
	}, []string{"priority"})
	waited := prometheus.NewHistogramVec(observe.Histogram("rate_limiter_wait_seconds", "How long a call waited for its permit.",
		.001, .005, .02, .1, .5, 2, 10, 60, 300, 1800), []string{"priority"})
	waiting := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rate_limiter_waiting", Help: "Calls that wait for their permit in this process.",
	}, []string{"priority"})
	m := &metrics{
		waiting: map[schemas.Lane]prometheus.Gauge{},
		jitter: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_jitter_seconds", Help: "By how much calls were spread on their way to the upstream, as measured last.",
		}),
		remaining: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_remaining", Help: "Calls that a policy has left now, for HIGH and for LOW.",
		}, []string{"policy", "priority"}),
		limit: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_limit", Help: "Calls that a policy allows in its window.",
		}, []string{"policy"}),
		rampRatio: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_ramp_ratio", Help: "The part of the rate that is used: 1, or less after a brake.",
		}, nil),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_used", Help: "Calls of a policy's window that are used; of a window kept by lanes, as of a second, nobody counts them.",
		}, []string{"policy"}),
		window: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_window_seconds", Help: "Length of a policy's window.",
		}, []string{"policy"}),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_state", Help: "1 for the state that the source's limiter is in, 0 for the others.",
		}, []string{"state"}),
		allowed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_jitter_allowed_seconds", Help: "By how much calls may be spread, as configured; above it the rate is lowered to fit.",
		}),
		stateLosses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_state_losses_total", Help: "How often the limiter's state was lost and begun anew, as this process has seen.",
		}),
		breakerOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_breaker_open", Help: "1 while this process knows that all calls are stopped but for probes, 0 otherwise.",
		}),
		scopeBreakersOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_scope_breakers_open", Help: "Credentials, endpoints and budgets that are stopped alone, as this process knows.",
		}),
		scopesExhausted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_scopes_exhausted", Help: "Values of policies' scopes of which nothing is left, as this process knows.",
		}),
		acquired: map[schemas.Lane]prometheus.Counter{},
		rejected: map[schemas.Lane]prometheus.Counter{},
		waited:   map[schemas.Lane]prometheus.Observer{},
		lapsed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_lapsed_total", Help: "Permits that lapsed before they were spent.",
		}),
		calls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_redis_calls_total", Help: "Calls to Redis for permits.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_redis_failures_total", Help: "Calls to Redis for permits that failed.",
		}),
		backoffs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_backoffs_total", Help: "Brakes that this process applied.",
		}),
	}
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		m.acquired[lane] = acquired.WithLabelValues(string(lane))
		m.rejected[lane] = rejected.WithLabelValues(string(lane))
		m.waiting[lane] = waiting.WithLabelValues(string(lane))
		m.waited[lane] = waited.WithLabelValues(string(lane))
	}
	reg.MustRegister(acquired, rejected, waited, m.lapsed, m.calls, m.failures, m.backoffs,
		waiting, m.jitter, m.remaining, m.limit, m.used, m.window, m.rampRatio, m.state, m.breakerOpen, m.scopeBreakersOpen, m.scopesExhausted, m.allowed, m.stateLosses,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rate_limiter_rps", Help: "Calls sent in the last whole second of the clock; the sum over all processes is the source's.",
		}, func() float64 { return float64(m.second.last(time.Now())) }))
	return m
}

// scopes counts what the buckets of this process show.
func (m *metrics) scopes(all []ScopeView) {
	halted, empty := 0.0, 0.0
	for _, s := range all {
		switch {
		case s.BreakerOpen:
			halted++
		case s.Remaining != nil && *s.Remaining <= 0:
			empty++
		}
	}
	m.scopeBreakersOpen.Set(halted)
	m.scopesExhausted.Set(empty)
}

// spent counts a permit that was spent.
func (m *metrics) spent(lane schemas.Lane, now time.Time) {
	m.acquired[lane].Inc()
	m.second.count(now)
}

// perSecond counts what happens in each second of the clock: of the same second, the
// counts of all processes add up.
type perSecond struct {
	mu           sync.Mutex
	at           int64 // Unix time of the second that is counted
	calls, whole int64 // in it, and in the one before
}

func (s *perSecond) count(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to := now.Unix(); to == s.at-1 { // it has waited for the lock over the turn
		s.whole++
		return
	}
	s.turn(now.Unix())
	s.calls++
}

// last returns how many there were in the second before that of now.
func (s *perSecond) last(now time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Unix() != s.at-1 {
		s.turn(now.Unix())
	}
	return s.whole
}

// turn begins another second. The caller holds s.mu.
func (s *perSecond) turn(to int64) {
	switch to {
	case s.at:
		return
	case s.at + 1:
		s.whole = s.calls
	default: // a while ago, or the clock was set
		s.whole = 0
	}
	s.at, s.calls = to, 0
}

// show sets what the live view shows of the state in Redis.
func (m *metrics) show(v View) {
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
		m.state.WithLabelValues(name).Set(is)
	}
	for _, p := range v.Policies {
		m.window.WithLabelValues(p.Name).Set(p.length.Seconds())
		if p.Used != nil {
			m.used.WithLabelValues(p.Name).Set(float64(*p.Used))
		} else {
			m.used.DeleteLabelValues(p.Name) // it is not known
		}
		m.limit.WithLabelValues(p.Name).Set(float64(p.Limit))
		m.remaining.WithLabelValues(p.Name, string(schemas.High)).Set(float64(p.Remaining))
		m.remaining.WithLabelValues(p.Name, string(schemas.Low)).Set(float64(p.RemainingForLow))
	}
}

// viewMetricsTTL is how long what was shown is told without a new look: three times as
// long as an idle process takes from one to the next.
const viewMetricsTTL = 3 * idleReportInterval

// fade takes back what was shown, once that is too old to go by: other processes know
// better.
func (m *metrics) fade(now time.Time) {
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
