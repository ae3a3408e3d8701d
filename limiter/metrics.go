package limiter

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
)

// metrics are the limiter's, by the names of adr-013 §12.
type metrics struct {
	acquired map[schemas.Lane]prometheus.Counter
	rejected map[schemas.Lane]prometheus.Counter
	waited   map[schemas.Lane]prometheus.Observer
	lapsed   prometheus.Counter
	calls    prometheus.Counter
	failures prometheus.Counter
	brakes   prometheus.Counter
	waiting  map[schemas.Lane]prometheus.Gauge
	jitter   prometheus.Gauge
	left     *prometheus.GaugeVec
	limit    *prometheus.GaugeVec
	rate     prometheus.Gauge
	state    *prometheus.GaugeVec
	probing  prometheus.Gauge
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"source": source}, reg)
	acquired := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_acquired_total", Help: "Permits spent, each on one upstream call.",
	}, []string{"priority"})
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_rejected_total", Help: "Permits asked for that lay beyond the horizon; their callers come back.",
	}, []string{"priority"})
	waited := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rate_limiter_wait_seconds", Help: "How long a call waited for its permit.",
		Buckets:                     []float64{.001, .005, .02, .1, .5, 2, 10, 60, 300, 1800},
		NativeHistogramBucketFactor: 1.1,
	}, []string{"priority"})
	waiting := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rate_limiter_waiting", Help: "Calls that wait for their permit in this process.",
	}, []string{"priority"})
	m := &metrics{
		waiting: map[schemas.Lane]prometheus.Gauge{},
		jitter: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_jitter_seconds", Help: "By how much calls were spread on their way to the upstream, as measured last.",
		}),
		left: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_left", Help: "Calls that a policy has left now, for HIGH and for LOW.",
		}, []string{"policy", "priority"}),
		limit: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_limit", Help: "Calls that a policy allows in its window.",
		}, []string{"policy"}),
		rate: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_ramp_ratio", Help: "The part of the rate that is used: 1, or less after a brake.",
		}),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rate_limiter_state", Help: "1 for the state that the source's limiter is in.",
		}, []string{"state"}),
		probing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rate_limiter_probing", Help: "1 while this process knows that all calls are stopped but for probes, 0 otherwise.",
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
		brakes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rate_limiter_brakes_total", Help: "Brakes that this process applied.",
		}),
	}
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		m.acquired[lane] = acquired.WithLabelValues(string(lane))
		m.rejected[lane] = rejected.WithLabelValues(string(lane))
		m.waiting[lane] = waiting.WithLabelValues(string(lane))
		m.waited[lane] = waited.WithLabelValues(string(lane))
	}
	reg.MustRegister(acquired, rejected, waited, m.lapsed, m.calls, m.failures, m.brakes,
		waiting, m.jitter, m.left, m.limit, m.rate, m.state, m.probing)
	return m
}

// show sets what the live view shows of the state in Redis.
func (m *metrics) show(v View) {
	m.rate.Set(v.Rate)
	m.state.Reset()
	m.state.WithLabelValues(v.State).Set(1)
	for _, p := range v.Policies {
		m.limit.WithLabelValues(p.Name).Set(float64(p.Limit))
		m.left.WithLabelValues(p.Name, string(schemas.High)).Set(float64(p.Left))
		m.left.WithLabelValues(p.Name, string(schemas.Low)).Set(float64(p.LeftForLow))
	}
}
