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
	stepRetryNow      step = iota // stay in the lane and try again
	stepStore                     // write what was found, and commit after that
	stepScheduleRetry             // write down when to try again, and commit after that
	stepDeadLetter                // a dead letter, and commit once Kafka has it
)

// scopeAction is how calls to the source pause, everywhere.
type scopeAction int

const (
	actionNone       scopeAction = iota
	actionBackOff                // for first; 0: the upstream did not say
	actionOpenSource             // but for one call after first, and then after pauses that double up to most
	actionOpenScope              // those that have block in common with the call, for first and longer up to most
)

// decision is everything that follows from an attempt.
type decision struct {
	next step
	// wait is how long to wait before trying again, or before a retry, if that is
	// not the facet's to say.
	wait              time.Duration
	countsFailure     bool // as a failure: of the tries in a row if again, of the rounds if retry
	limitRounds       bool // of those rounds there are maxOwn at most
	needsConfirmation bool // a bury that is sure only if it comes to that once more
	awaitBreaker      bool // it waits, without a slot, until the source's breaker closes
	requeue           bool // it was preempted and waits, without a slot, for its client's next turn
	action            scopeAction
	block             string // of parted
	pause             time.Duration
	maxPause          time.Duration
	reason            schemas.DeadLetterReason // of a dead letter or a retry
}

const (
	// maxConsecutiveTries is how often a transient failure is tried before the record
	// becomes a scheduled retry.
	maxConsecutiveTries = 3
	initialRetryDelay   = 200 * time.Millisecond // doubles
	// maxPartitionHold is how long tries in a row may hold up a partition (semantics §4).
	maxPartitionHold = time.Minute

	// notReadyDelay is for content that comes later, where the upstream does not
	// say when.
	notReadyDelay = 5 * time.Minute
	// maxOwnFailures is the number of failures of its own after which a refused entity becomes a
	// dead letter.
	maxOwnFailures = 3
	// outageDelay is before the retry of a call whose failure was not the entity's, or not
	// known to be. While the source's breaker is open the retry waits for it besides.
	outageDelay = 30 * time.Second
	// endpointDelay spreads the retries of an endpoint whose breaker is open.
	endpointDelay = 2 * time.Minute
	// unreachableDelay is before dialling again where no call could be sent: none is
	// wasted by waiting.
	unreachableDelay = 5 * time.Second

	outagePause, outageMaxPause           = 5 * time.Second, time.Minute
	maintenancePause, maintenanceMaxPause = 10 * time.Second, time.Minute
	// An expired credential makes every request fail and none of them wrong.
	refusedPause, refusedMaxPause = 5 * time.Second, 5 * time.Minute

	// maxBlock is how long what was refused for its quota is blocked at most, if no
	// rule says that such a refusal is to be taken for longer; then it is blockTimes as
	// long, up to blockLongest.
	maxBlock, maxRuleBlock = time.Minute, time.Hour
	ruleBlockFactor        = 60
	// minCallDelay is the shortest time before a call that alone was refused is made again.
	minCallDelay = time.Second
)

// attemptHistory is what was done for a record before.
type attemptHistory struct {
	calls            int           // sent in this attempt
	failures         int           // counted in a row, without this one
	sinceFirstCall   time.Duration // since its first call
	listedCredential bool          // the last call went with a credential that is listed by a name
	unconfirmed      bool          // it failed so before, and is asked once more
}

// allowsRetryNow reports whether a failure is followed by another try at once.
func (t attemptHistory) allowsRetryNow(o source.Outcome) bool {
	return o.Class == source.Transient && t.calls > 0 && t.failures+1 < maxConsecutiveTries && t.sinceFirstCall < maxPartitionHold
}

// needsVerdict reports whether it has to be known whose the failure is.
func needsVerdict(o source.Outcome, t attemptHistory, d diagnosis) bool {
	switch o.Class {
	case source.AuthRefused:
		return o.Block != source.BlockCall
	case source.Quota: // the upstream's own word is believed at once
		return o.Block != source.BlockCall && o.RetryAfter == 0
	case source.Transient, source.Permanent, source.BadContent:
		return !d.open() && !t.allowsRetryNow(o)
	case source.OK, source.NotModified, source.NotFound, source.NotReady, source.Maintenance:
	}
	return false
}

// decide is the one place where a class becomes an action (see doc.go).
func decide(o source.Outcome, t attemptHistory, d diagnosis, v verdict) decision {
	asked := max(o.RetryAfter, o.Wait)
	outage := decision{next: stepScheduleRetry, wait: outageDelay, reason: schemas.Outage}
	counted := decision{next: stepScheduleRetry, countsFailure: true, limitRounds: true, reason: schemas.Upstream4xx}
	switch o.Class {
	case source.OK, source.NotModified, source.NotFound:
		return decision{next: stepStore}
	case source.NotReady:
		wait := notReadyDelay
		if asked > 0 {
			wait = asked
		}
		return decision{next: stepScheduleRetry, wait: wait, reason: schemas.NotReady}
	case source.Maintenance:
		outage.wait = max(asked, outageDelay)
		outage.action, outage.pause, outage.maxPause = actionOpenSource, max(asked, maintenancePause), max(asked, maintenanceMaxPause)
		return outage
	case source.Quota, source.AuthRefused:
		switch {
		case o.Block == source.BlockCall && asked > 0:
			return decision{next: stepScheduleRetry, wait: max(asked, minCallDelay), reason: schemas.Outage}
		case o.Class == source.Quota && v == entityFault:
			counted.wait = outageDelay // a pause of the upstream may just have ended
			return counted
		case o.Block == source.BlockCall || v == entityFault:
			return counted
		case v != sharedFault && needsVerdict(o, t, d):
			return outage
		}
		return decideRefusal(o, t, asked)
	case source.Transient, source.Permanent, source.BadContent:
	}
	// A failure. It is the entity's only if the source is healthy.
	switch {
	case d == sourceOpened:
		outage.action, outage.pause, outage.maxPause = actionOpenSource, outagePause, outageMaxPause
		return outage
	case d == endpointOpen:
		outage.wait = endpointDelay
		return outage
	case d.open():
		return outage
	case t.allowsRetryNow(o):
		return decision{wait: initialRetryDelay << t.failures, countsFailure: true}
	case v == entityFault && o.Class == source.Transient:
		return decision{next: stepScheduleRetry, countsFailure: true, reason: deadLetterReason(o)}
	case v == entityFault || (v == noKnownGood && evidenceOf(o) == entityEvidence):
		return decision{next: stepDeadLetter, wait: initialRetryDelay, needsConfirmation: !t.unconfirmed, reason: deadLetterReason(o)}
	}
	return outage
}

// decideRefusal is what follows where a refusal is believed of more than its entity.
func decideRefusal(o source.Outcome, t attemptHistory, asked time.Duration) decision {
	first, most := asked, max(asked, maxBlockFor(o.Wait))
	if o.Class == source.AuthRefused {
		first, most = max(asked, refusedPause), max(asked, refusedMaxPause)
	}
	switch {
	case o.Block == source.BlockEndpoint || o.Block == source.BlockResource:
		return decision{next: stepScheduleRetry, wait: max(first, minCallDelay), reason: schemas.Outage, action: actionOpenScope, block: o.Block, pause: first, maxPause: most}
	case o.Block == source.BlockCredential && (t.listedCredential || o.Class == source.Quota):
		// The others may go on. The only one is the whole source; but a halt for its
		// quota is longer with each refusal, which a brake is not.
		return decision{action: actionOpenScope, block: o.Block, pause: first, maxPause: most}
	case o.Class == source.AuthRefused:
		return decision{next: stepScheduleRetry, wait: outageDelay, reason: schemas.Outage, action: actionOpenSource, pause: first, maxPause: most}
	}
	return decision{action: actionBackOff, pause: first}
}

// maxBlockFor is how long a part is blocked at most where a rule says that it is so for
// at least wait.
func maxBlockFor(wait time.Duration) time.Duration {
	return max(maxBlock, min(ruleBlockFactor*wait, maxRuleBlock))
}

// deadLetterReason names a failed fetch.
func deadLetterReason(o source.Outcome) schemas.DeadLetterReason {
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

// readable reports whether bad content could be read: then it says something of its
// entity. A page in place of JSON does not.
func readable(o source.Outcome) bool {
	return errors.Is(o.Err, errShrunk) || errors.Is(o.Err, source.ErrOversized)
}
