package app

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
)

const (
	// minLease and maxLease bound the lease of a client's outstanding request. If no worker reports
	// the end of the request, the request counts against the client until the lease expires. The
	// lease is twice the time in which the source can fetch a client's maximum number of outstanding
	// requests, at the mean rate that the quota allows over a day.
	minLease, maxLease = 2 * time.Minute, time.Hour
	// newKeysDivisor limits a client's requests for new keys, which have no snapshot yet, to the
	// HIGH rate of the quota divided by newKeysDivisor.
	newKeysDivisor = 4
)

// clientBound returns the limits that apply to each client for requests of a facet. A refresh of
// one entity costs one call for each document of the facet. The first fetch of a new key also costs the
// calls of the facets that the facet takes params from.
func (s SourceConfig) clientBound(quota limiter.Quota, facet string, limits access.Limits) producer.Bound {
	perRefresh, perNewKey := max(1, float64(len(s.Facets[facet].Documents))), max(1, float64(firstReadCalls(s.Facets, facet)))
	may := func(within time.Duration) float64 { return quota.MaxCalls(schemas.High, within) }
	b := producer.Bound{Window: limits.Outstanding, Lease: minLease}
	if perMinute := may(time.Minute) / perRefresh; limits.Outstanding > 0 {
		at := perMinute / time.Minute.Seconds() * limits.Outstanding.Seconds()
		if math.IsInf(at, 1) { // if no policy limits the rate, the in-flight limit of the workers applies instead
			at = float64(s.Workers.High.MaxInFlight)
		}
		b.Outstanding = max(producer.MinOutstanding, int(at))
		slowest := may(24*time.Hour) / perNewKey / (24 * time.Hour).Seconds()
		b.Lease = leaseDuration(2 * float64(b.Outstanding) / slowest)
	}
	if limits.NewKeys != access.AutoRate {
		if calls, window := limits.NewKeys.Parse(); calls > 0 {
			b.NewKeys, b.NewKeyInterval = calls, window/time.Duration(calls)
		}
		return b
	}
	slowest := math.Inf(1) // lowest rate over a minute, an hour and a day, in new keys per second
	for _, window := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		slowest = min(slowest, may(window)/perNewKey/window.Seconds()/newKeysDivisor)
	}
	if !math.IsInf(slowest, 1) {
		b.NewKeys = max(1, int(may(time.Minute)/perNewKey/newKeysDivisor))
		b.NewKeyInterval = max(time.Microsecond, time.Duration(float64(time.Second)/slowest))
	}
	return b
}

// leaseDuration returns a lease in seconds as a duration, bounded by minLease and maxLease.
func leaseDuration(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, minLease.Seconds()), maxLease.Seconds()) * float64(time.Second))
}

// explainClients prints the limits of one client for each facet.
func explainClients(to io.Writer, s SourceConfig, quota limiter.Quota, limits access.Limits) {
	for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
		b := s.clientBound(quota, facet, limits)
		outstanding, newKeys := "any number of requests outstanding", "any number of new keys"
		if b.Outstanding > 0 {
			outstanding = fmt.Sprintf("%s requests outstanding, shared with other active clients, but %d in any case", status.FormatInt(b.Outstanding), producer.MinOutstanding)
		}
		if b.NewKeys > 0 {
			newKeys = fmt.Sprintf("%s new keys at once and %s", status.FormatInt(b.NewKeys), formatRate(b.NewKeyInterval))
		}
		_, _ = fmt.Fprintf(to, "  client  %s: at most %s; %s\n", facet, outstanding, newKeys)
	}
}

// formatRate returns the rate of events with this interval as text: per minute, per hour if the
// interval is longer than a minute, or per day if it is longer than an hour.
func formatRate(interval time.Duration) string {
	unit, name := time.Minute, "a minute"
	switch {
	case interval > time.Hour:
		unit, name = 24*time.Hour, "a day"
	case interval > time.Minute:
		unit, name = time.Hour, "an hour"
	}
	return formatCalls(float64(unit)/float64(interval)) + " " + name
}

// toAccessRefusal converts the producer's refusal of a request to the type that HTTP responses use.
func toAccessRefusal(r producer.Refusal) *access.Refusal {
	return &access.Refusal{
		NewKeys: r.Outcome == producer.TooManyNewKeys, Max: r.Max, Window: r.Window, After: cmp.Or(r.After, time.Second),
	}
}
