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
	bury              // a dead letter, and commit once Kafka has it
)

// decision is everything that follows from an attempt.
type decision struct {
	next   step
	wait   time.Duration            // before trying again
	counts bool                     // the attempt counts as a failure of this record
	brakes bool                     // all calls to the source pause
	brake  time.Duration            // for so long; 0: the upstream did not say
	reason schemas.DeadLetterReason // of a dead letter
}

const (
	// triesInARow is how often a transient failure is tried before the record
	// becomes a dead letter.
	triesInARow = 3
	firstWait   = 200 * time.Millisecond // doubles

	// The brakes where the upstream does not say how long, and asking again soon
	// would tell nothing.
	maintenanceBrake = 30 * time.Second
	refusedBrake     = 30 * time.Second
	unreachableWait  = 5 * time.Second
)

// decide is the one place where a class becomes an action. calls were sent in
// this attempt; failures counted before it.
func decide(o source.Outcome, calls, failures int) decision {
	switch o.Class {
	case source.OK, source.NotModified, source.Absent:
		return decision{next: write}
	case source.Quota:
		return decision{brakes: true, brake: o.RetryAfter}
	case source.Maintenance:
		return decision{brakes: true, brake: max(o.RetryAfter, maintenanceBrake)}
	case source.AuthRefused:
		// An expired key makes every request fail and none of them wrong.
		return decision{brakes: true, brake: max(o.RetryAfter, refusedBrake)}
	case source.Transient:
		if calls == 0 {
			// It could not be sent: no call was made, and none is wasted by waiting.
			return decision{wait: unreachableWait}
		}
		if failures+1 < triesInARow {
			return decision{wait: firstWait << failures, counts: true}
		}
		if o.Status >= 500 {
			return decision{next: bury, reason: schemas.Upstream5xx}
		}
		return decision{next: bury, reason: schemas.Unreachable}
	case source.NotReady:
		return decision{next: bury, reason: schemas.NotReady}
	case source.Permanent:
		return decision{next: bury, reason: schemas.Upstream4xx}
	case source.BadContent:
		if errors.Is(o.Err, source.ErrOversized) {
			return decision{next: bury, reason: schemas.OversizedAnswer}
		}
		return decision{next: bury, reason: schemas.ParseError}
	}
	panic("consumer: unknown class " + string(o.Class))
}
