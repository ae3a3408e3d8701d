package limiter

import (
	"math"
	"time"

	"github.com/freshet/freshet/schemas"
)

// MaxCalls returns the maximum number of calls that a lane can make in a period of length `within`
// that starts with an unused quota. Each policy has a maximum for all values of its scope together.
// MaxCalls returns the lowest of these maxima, or +Inf if no policy limits calls by time.
func (q Quota) MaxCalls(lane schemas.Lane, within time.Duration) float64 {
	limit := math.Inf(1)
	for _, l := range q.partitioned {
		calls := 0.0
		for i, one := range l.partitions {
			if one.interval > 0 && (i == 1 || (i == 0) == (lane == schemas.High)) {
				calls += float64(one.burst) + float64(within)/float64(one.interval)
			}
		}
		limit = min(limit, calls)
	}
	for _, r := range q.windowLogs {
		calls := r.high
		if lane == schemas.Low {
			calls = r.low
		}
		limit = min(limit, scaleToPeriod(float64(calls), r.reach, within))
	}
	if d := q.day; d != nil {
		calls := float64(d.policy.Limit)
		if lane == schemas.Low { // LOW's calls are spread evenly over the day
			calls = max(1, (calls-86400*d.reserve)*min(1, within.Hours()/24))
		}
		limit = min(limit, calls)
	}
	for _, s := range q.scoped {
		limit = min(limit, q.values(s)*s.maxUnits(lane, within)/float64(s.cheapest))
	}
	return math.Floor(limit + 1e-6)
}

// scaleToPeriod returns how many calls a period of length `within` allows if each window allows
// `calls`.
func scaleToPeriod(calls float64, window, within time.Duration) float64 {
	return calls * max(1, float64(within)/float64(window))
}

// maxUnits returns the units that one bucket allows within a period.
func (s scopedPolicy) maxUnits(lane schemas.Lane, within time.Duration) float64 {
	low := lane == schemas.Low
	switch t := s.terms.(type) {
	case unitLogTerms:
		units := t.Units
		if low {
			units = t.LowUnits
		}
		limit := scaleToPeriod(s.wholeCalls(units), micros(t.Reach), within)
		if t.PaceNs > 0 {
			limit = min(limit, float64(t.Burst)+float64(within)/float64(t.PaceNs))
		}
		return limit
	case leakyBucketTerms:
		if len(s.policy.CountedStatuses) > 0 {
			return math.Inf(1) // an error budget: successful calls cost nothing
		}
		units := float64(t.Size) + float64(within)/float64(t.UnitNs)
		if low {
			units -= float64(t.ForHigh)
		}
		return units
	case minIntervalTerms:
		return 1 + 2*float64(within.Microseconds())/float64(t.MinGap+t.MaxGap)
	case reportedTerms:
		units := t.Units
		if low {
			units -= t.ForHigh
		}
		return scaleToPeriod(float64(units), micros(t.Window), within)
	case concurrencyTerms, breakerTerms:
	}
	return math.Inf(1)
}

// values returns the number of values that a policy's scope can have. It is +Inf for scopes such
// as {key}, which have another value for each entity.
func (q Quota) values(s scopedPolicy) float64 {
	n := 1.0
	for _, name := range s.scope.names {
		switch name {
		case "credential":
			n *= max(1, float64(q.config.Credentials))
		case "endpoint", "facet", "method":
			n *= max(1, float64(q.config.Endpoints))
		case "host":
			n *= max(1, float64(q.config.Hosts))
		case "resource":
		default:
			n = math.Inf(1)
		}
	}
	return n
}
