package renewal

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/store/tokens"
)

// results are the values of the label "result" of the metric credential_renewals_total.
var results = []string{"ok", "failed", "superseded", "lost"}

type metrics struct {
	renewals          *prometheus.CounterVec
	refusals          *prometheus.CounterVec
	end               *prometheus.GaugeVec
	stopped, failures *prometheus.GaugeVec
}

func newMetrics(source string, names []string, reg prometheus.Registerer) *metrics {
	labels := prometheus.Labels{"source": source}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, []string{"credential"})
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, append([]string{"credential"}, more...))
	}
	m := &metrics{
		renewals: counter("credential_renewals_total", "Renewals of tokens by this process, by result.", "result"),
		refusals: counter("credential_refusals_total", "Generations of tokens whose renewal this process requested, because the upstream answered 401."),
		end:      gauge("credential_token_end_timestamp_seconds", "Time at which the token expires; 0 without a token."),
		stopped:  gauge("credential_stopped", "1 if an operator has to renew or authorize the credential, otherwise 0."),
		failures: gauge("credential_renewal_failures", "Failed renewals since the last token."),
	}
	reg.MustRegister(m.renewals, m.refusals, m.end, m.stopped, m.failures)
	for _, name := range names {
		for _, result := range results {
			m.renewals.WithLabelValues(name, result)
		}
		m.refusals.WithLabelValues(name)
	}
	return m
}

func (m *metrics) renewed(credential, result string) {
	m.renewals.WithLabelValues(credential, result).Inc()
}

func (m *metrics) refused(credential string) { m.refusals.WithLabelValues(credential).Inc() }

func (m *metrics) set(credential string, until time.Time, row tokens.Token) {
	end := 0.0
	if !until.IsZero() {
		end = float64(until.Unix())
	}
	m.end.WithLabelValues(credential).Set(end)
	m.failures.WithLabelValues(credential).Set(float64(row.Failures))
	stopped := 0.0
	if row.State == tokens.Stopped {
		stopped = 1
	}
	m.stopped.WithLabelValues(credential).Set(stopped)
}
