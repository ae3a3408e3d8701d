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

// halt is how calls to the source pause, everywhere.
type halt int

const (
	goOn   halt = iota
	braked      // for first; 0: the upstream did not say
	probed      // but for one call after first, and then after pauses that double up to most
	parted      // those that have block in common with the call, for first and longer up to most
)

// decision is everything that follows from an attempt.
type decision struct {
	next step
	// wait is how long to wait before trying again, or before a retry, if that is
	// not the facet's to say.
	wait   time.Duration
	told   bool // the upstream said how long: never shorter
	counts bool // as a failure: of the tries in a row if again, of the rounds if retry
	doubt  bool // a bury that is sure only if it comes to that once more
	halt   halt
	block  string // of parted
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

	// blockMost is how long what was refused for its quota is blocked at most, if no
	// rule says that such a refusal is to be taken for longer; then it is blockTimes as
	// long, up to blockLongest.
	blockMost, blockLongest = time.Minute, time.Hour
	blockTimes              = 60
	// callWait is before a call that alone was refused is made again.
	callWait = time.Second
)

// tried is what was done for a record before.
type tried struct {
	calls    int           // sent in this attempt
	failures int           // counted in a row, without this one
	pinned   time.Duration // since its first call
	named    bool          // the last call went with a credential that is listed by a name
	doubted  bool          // it would have become a dead letter before, and is asked once more
}

// decide is the one place where a class becomes an action (semantics §5).
func decide(o source.Outcome, t tried, d diagnosis) decision {
	asked := max(o.RetryAfter, o.Wait)
	switch o.Class {
	case source.OK, source.NotModified, source.Absent:
		return decision{next: write}
	case source.Quota:
		return refused(o.Block, t, asked, decision{halt: braked, first: asked}, decision{first: asked, most: max(asked, blockedFor(o.Wait))})
	case source.Maintenance:
		return decision{halt: probed, first: max(asked, maintenanceFirst), most: max(asked, maintenanceMost)}
	case source.AuthRefused:
		all := decision{halt: probed, first: max(asked, refusedFirst), most: max(asked, refusedMost)}
		return refused(o.Block, t, asked, all, decision{first: all.first, most: all.most})
	case source.NotReady:
		wait := notReadyWait
		if asked > 0 {
			wait = asked
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

// refused is what follows where an answer stops more or less than the source: all is
// for the whole of it, and part for a part.
func refused(block string, t tried, asked time.Duration, all, part decision) decision {
	switch block {
	case source.BlockCredential:
		// The only one is the whole source. But a halt for its quota is longer with each
		// refusal, which a brake is not.
		if !t.named && all.halt == probed {
			return all
		}
	case source.BlockEndpoint, source.BlockResource:
	case source.BlockCall:
		wait := max(asked, callWait)
		if t.pinned+wait > pinMost {
			return decision{next: retry, wait: wait, reason: schemas.Outage}
		}
		return decision{wait: wait, told: true}
	default:
		return all
	}
	part.halt, part.block = parted, block
	return part
}

// blockedFor is how long a part is blocked at most where a rule says that it is so for
// at least wait.
func blockedFor(wait time.Duration) time.Duration {
	return max(blockMost, min(blockTimes*wait, blockLongest))
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
