package runs

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/store"
)

type metrics struct {
	runsEnded, steps, requests *prometheus.CounterVec
	duration                   prometheus.Histogram
	active, open               prometheus.Gauge

	mu   sync.Mutex
	next time.Time // due time of the next step, or next deadline of a run; zero means that there is none
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	labels := prometheus.Labels{"source": source}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	}
	duration := observe.Histogram("run_duration_seconds", "Duration of an attempt of a run.", 1, 10, 60, 300, 900, 3600, 4*3600, 24*3600)
	duration.ConstLabels = labels
	m := &metrics{
		runsEnded: counter("runs_ended_total", "Runs that this process has ended, by state.", "state"),
		steps:     counter("run_steps_ended_total", "Steps of runs that this process has ended, by state.", "state"),
		requests:  counter("run_requests_total", "Requests of pages of runs: published, covered by the record of another request, or not enqueued.", "outcome"),
		duration:  prometheus.NewHistogram(duration),
		active:    gauge("runs_active", "Active runs of the source."),
		open:      gauge("run_steps_open", "Open steps of the active runs of the source."),
	}
	for _, s := range []State{Completed, Failed} {
		m.runsEnded.WithLabelValues(string(s))
	}
	for _, s := range []StepState{StepDone, StepNotFound, StepFailed} {
		m.steps.WithLabelValues(string(s))
	}
	for _, outcome := range outcomes {
		m.requests.WithLabelValues(outcome)
	}
	// The gauge is computed at each scrape, so that it continues to rise if the poller can't claim
	// steps.
	lag := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "runs_lag_seconds", Help: "Time for which the next step or deadline of a run has been due; 0 if none is due.", ConstLabels: labels,
	}, m.lag)
	reg.MustRegister(m.runsEnded, m.steps, m.requests, m.duration, m.active, m.open, lag)
	return m
}

func (m *metrics) lag() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next.IsZero() {
		return 0
	}
	return max(0, time.Since(m.next).Seconds())
}

func (m *metrics) setNext(next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = next
}

// outcomes maps each value of Enqueued to its value of the metric label outcome.
var outcomes = [...]string{NotEnqueued: "not_enqueued", Published: "published", Covered: "covered"}

func (m *metrics) requested(e Enqueued) { m.requests.WithLabelValues(outcomes[e]).Inc() }

func (m *metrics) stepsEnded(all []StepEnd) {
	for _, e := range all {
		m.steps.WithLabelValues(string(e.State)).Inc()
	}
}

func (m *metrics) runEnded(run Run) {
	m.runsEnded.WithLabelValues(string(run.State)).Inc()
	m.duration.Observe(run.EndedAt.Sub(run.AttemptAt).Seconds())
}

const countActive = `SELECT count(*), COALESCE(sum(open), 0) FROM runs WHERE source = $1 AND state = 'RUNNING'`

// measure reads the numbers of active runs and open steps from the database, and sets the gauges.
func (p *Poller) measure(ctx context.Context) error {
	return p.runs.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Query(ctx, func(scan func(...any) error) error {
			var active, open int64
			if err := scan(&active, &open); err != nil {
				return err
			}
			p.metrics.active.Set(float64(active))
			p.metrics.open.Set(float64(open))
			return nil
		}, countActive, p.source.Name())
	})
}
