package webhooks

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
)

// result is the result of a delivery, as the metric and the console show it.
type result string

// Severity tells operators which deliveries that were not accepted they should examine.
type Severity int

// The severities.
const (
	Ignored Severity = iota // the delivery is valid, and no refresh follows from it
	Refused                 // the delivery is invalid, or exceeds a limit
	Failed                  // the refreshes could not be requested; the upstream must repeat the delivery
)

func (r result) severity() Severity {
	switch r {
	case accepted, unknownEvent, noKey, unknownKey, held:
		return Ignored
	case badSignature, expired, badBody, tooLarge, limited:
		return Refused
	case unavailable:
		return Failed
	}
	return Ignored // a result of another release
}

// The results. accepted means that at least one refresh was requested. With limited or unavailable, a part of
// the refreshes can have been requested too.
const (
	accepted     result = "accepted"
	unknownEvent result = "unknown-event" // no rule applies
	noKey        result = "no-key"        // a rule applies, but the delivery has no valid key at the place that the rule names
	unknownKey   result = "unknown-key"   // no key is stored or registered
	held         result = "held"          // each known entity is on hold
	badSignature result = "bad-signature"
	expired      result = "expired" // the delivery was signed too long ago
	badBody      result = "bad-body"
	tooLarge     result = "too-large" // the body is too long, or has too many keys
	limited      result = "limited"   // the limit newKeys is reached
	unavailable  result = "unavailable"
)

type metrics struct {
	deliveries *prometheus.CounterVec
	last       *prometheus.GaugeVec
	stored     *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	of := []string{"source", "name"}
	m := &metrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hooks_total", Help: "Deliveries of webhooks by result.",
		}, append(of, "result")),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hook_last_timestamp_seconds", Help: "Time of the last delivery with a valid signature; 0: none since the start of the process.",
		}, of),
		stored: prometheus.NewHistogramVec(observe.Histogram("hook_to_stored_seconds", "Time from a delivery to the snapshot of a fetch that began after it.",
			.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800), of),
	}
	reg.MustRegister(m.deliveries, m.last, m.stored)
	return m
}
