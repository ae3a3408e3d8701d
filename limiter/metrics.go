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
	m := &metrics{
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
		m.waited[lane] = waited.WithLabelValues(string(lane))
	}
	reg.MustRegister(acquired, rejected, waited, m.lapsed, m.calls, m.failures, m.brakes)
	return m
}
