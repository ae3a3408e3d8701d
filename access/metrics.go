package access

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/problem"
)

type metrics struct {
	refused           *prometheus.CounterVec
	keys              prometheus.Gauge
	keysReadAt        prometheus.Gauge
	signingKeysReadAt prometheus.Gauge // Unix seconds of the last fetch of the signing keys
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "access_refused_total", Help: "Requests refused because of their credential or client header or, without authentication, their host, origin or forwarding headers, by problem code.",
		}, []string{"code"}),
		keys: prometheus.NewGauge(prometheus.GaugeOpts{Name: "access_api_keys", Help: "API keys that are not revoked, at the last read."}),
		keysReadAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "access_api_keys_read_timestamp_seconds", Help: "Last read of the API keys, in Unix seconds. A later revocation is not effective yet.",
		}),
		signingKeysReadAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "access_signing_keys_read_timestamp_seconds", Help: "Last fetch of the keys of access.jwksURL, in Unix seconds; 0: never.",
		}),
	}
	for _, code := range []problem.Code{problem.TokenMissing, problem.TokenInvalid, problem.TokenExpired, problem.KeysUnavailable, problem.Misdirected, problem.CrossSite, problem.Forwarded, problem.BadClient} {
		m.refused.WithLabelValues(string(code))
	}
	reg.MustRegister(m.refused, m.keys, m.keysReadAt, m.signingKeysReadAt)
	return m
}
