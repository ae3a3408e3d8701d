package webhooks

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
)

// result is the result of a delivery. It is a label of the metric hooks_total, and is shown in the
// console.
type result string

// Severity says how important it is that an operator examines a delivery that was not accepted.
type Severity int

// The severities.
const (
	Ignored Severity = iota // the delivery is valid, but requests no refresh
	Refused                 // the delivery is invalid, or is above a limit
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
	return Ignored // a process with another release of freshet has counted this result
}

// The values of result. accepted: at least one refresh was requested. limited or unavailable: some
// refreshes of the delivery could not be requested; others may have been requested.
const (
	accepted     result = "accepted"
	unknownEvent result = "unknown-event" // no rule applies
	noKey        result = "no-key"        // a rule applies, but the place Rule.Key has no valid key
	unknownKey   result = "unknown-key"   // no key is stored or registered
	held         result = "held"          // each stored or registered entity has a hold
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
