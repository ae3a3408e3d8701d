package access

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	refused           *prometheus.CounterVec
	keys              prometheus.Gauge
	keysReadAt        prometheus.Gauge
	signingKeysReadAt prometheus.Gauge // last fetch of the signing keys
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "access_refused_total", Help: "Requests that were refused for their key, token or client header, or, without access control, for their host, origin or forwarding headers, by code.",
		}, []string{"code"}),
		keys: prometheus.NewGauge(prometheus.GaugeOpts{Name: "access_api_keys", Help: "API keys that are not revoked, as this process knows."}),
		keysReadAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "access_api_keys_read_timestamp_seconds", Help: "When the API keys were read last; a revocation after that is not known yet.",
		}),
		signingKeysReadAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "access_signing_keys_read_timestamp_seconds", Help: "When the keys of access.jwksURL were fetched last; 0 if they never were.",
		}),
	}
	for _, code := range []string{codeMissing, codeInvalid, codeExpired, codeNoKeys, codeHost, codeSite, codeForwarded, codeClient} {
		m.refused.WithLabelValues(code)
	}
	reg.MustRegister(m.refused, m.keys, m.keysReadAt, m.signingKeysReadAt)
	return m
}
