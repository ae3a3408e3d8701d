package consumer

import (
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// step is what is done with a record after an attempt.
type step int

const (
	again step = iota // stay in the lane and try again
	write             // write what was found, and commit after that
	retry             // write down when to try again, and commit after that
	bury              // a dead letter, and commit once Kafka has it
)

// halt is how all calls to the source pause, everywhere.
type halt int

const (
	goOn   halt = iota
	braked      // for first; 0: the upstream did not say
	probed      // but for one call after first, and then after pauses that double up to most
)

// decision is everything that follows from an attempt.
type decision struct {
	next step
	// wait is how long to wait before trying again, or before a retry, if that is
	// not the facet's to say.
	wait   time.Duration
	counts bool // as a failure: of the tries in a row if again, of the rounds if retry
	doubt  bool // a bury that is sure only if it comes to that once more
	halt   halt
	first  time.Duration
	most   time.Duration
	reason schemas.DeadLetterReason // of a dead letter or a retry
}

const (
	// triesInARow is how often a transient failure is tried before the record
	// becomes a scheduled retry.
	triesInARow = 3
	firstWait   = 200 * time.Millisecond // doubles
	// pinMost is how long tries in a row may hold up a partition (semantics §4).
	pinMost = time.Minute

	// notReadyWait is for content that comes later, where the upstream does not
	// say when.
	notReadyWait = 5 * time.Minute
	// endpointWait spreads what a sick endpoint's entities wait for.
	endpointWait = 2 * time.Minute
	// unreachableWait is before dialling again where no call could be sent: none is
	// wasted by waiting.
	unreachableWait = 5 * time.Second

	outageFirst, outageMost           = 5 * time.Second, time.Minute
	maintenanceFirst, maintenanceMost = 10 * time.Second, time.Minute
	// An expired credential makes every request fail and none of them wrong.
	refusedFirst, refusedMost = 5 * time.Second, 5 * time.Minute
)

// tried is what was done for a record before.
type tried struct {
	calls    int           // sent in this attempt
	failures int           // counted in a row, without this one
	pinned   time.Duration // since its first call
	doubted  bool          // it would have become a dead letter before, and is asked once more
}

// decide is the one place where a class becomes an action (semantics §5).
func decide(o source.Outcome, t tried, d diagnosis) decision {
	switch o.Class {
	case source.OK, source.NotModified, source.Absent:
		return decision{next: write}
	case source.Quota:
		return decision{halt: braked, first: o.RetryAfter}
	case source.Maintenance:
		return decision{halt: probed, first: max(o.RetryAfter, maintenanceFirst), most: max(o.RetryAfter, maintenanceMost)}
	case source.AuthRefused:
		return decision{halt: probed, first: max(o.RetryAfter, refusedFirst), most: max(o.RetryAfter, refusedMost)}
	case source.NotReady:
		wait := notReadyWait
		if o.RetryAfter > 0 {
			wait = o.RetryAfter
		}
		return decision{next: retry, wait: wait, reason: schemas.NotReady}
	case source.Transient, source.Permanent, source.BadContent:
	}
	// A failure. It is the entity's only if the source is well.
	switch d {
	case fellSick:
		return decision{halt: probed, first: outageFirst, most: outageMost}
	case sickSource:
		if t.calls == 0 {
			return decision{wait: unreachableWait}
		}
		return decision{wait: firstWait} // and then behind the stop
	case sickEndpoint:
		return decision{next: retry, wait: endpointWait, reason: schemas.Outage}
	case nothing, recovered:
	}
	reason := failure(o)
	switch {
	case o.Class != source.Transient:
		return decision{next: bury, doubt: !t.doubted, reason: reason}
	case t.calls == 0:
		return decision{wait: unreachableWait}
	case t.failures+1 < triesInARow && t.pinned < pinMost:
		return decision{wait: firstWait << t.failures, counts: true}
	}
	return decision{next: retry, counts: true, reason: reason}
}

// failure names a failed fetch.
func failure(o source.Outcome) schemas.DeadLetterReason {
	switch {
	case o.Class == source.Permanent:
		return schemas.Upstream4xx
	case o.Class == source.BadContent && errors.Is(o.Err, source.ErrOversized):
		return schemas.OversizedAnswer
	case o.Class == source.BadContent:
		return schemas.ParseError
	case o.Status >= 500:
		return schemas.Upstream5xx
	}
	return schemas.Unreachable
}
