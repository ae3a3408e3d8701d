package access

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	refused  *prometheus.CounterVec
	keys     prometheus.Gauge
	lookedAt prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "access_refused_total", Help: "Requests that were refused for their key, token or client header, or, where nobody is asked for one, for their host or origin, by code.",
		}, []string{"code"}),
		keys: prometheus.NewGauge(prometheus.GaugeOpts{Name: "access_api_keys", Help: "API keys that are not revoked, as this process knows."}),
		lookedAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "access_api_keys_read_timestamp_seconds", Help: "When the API keys were read last; a revocation after that is not known yet.",
		}),
	}
	for _, code := range []string{codeMissing, codeInvalid, codeExpired, codeNoKeys, codeHost, codeSite, codeClient} {
		m.refused.WithLabelValues(code)
	}
	reg.MustRegister(m.refused, m.keys, m.lookedAt)
	return m
}
