package consumer

import (
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// step is the next step of a record after an attempt.
type step int

const (
	stepRetryNow      step = iota // keep the record uncommitted and try it again
	stepStore                     // store the result, then commit the offset
	stepScheduleRetry             // store a scheduled retry, then commit the offset
	stepDeadLetter                // write a dead letter, then commit the offset
)

// scopeAction is the pause of calls that follows from a decision. It applies to all processes.
type scopeAction int

const (
	actionNone       scopeAction = iota
	actionBackOff                // the source backs off for decision.pause; a pause of 0 means that the upstream named no duration
	actionOpenSource             // the source's breaker opens; the first probe follows after the time `pause`, which doubles after each failed probe, up to `maxPause`
	actionOpenScope              // the breaker of the call's scope (decision.block) opens for the time `pause`; further refusals lengthen that time up to `maxPause`
)

// decision is the next step after an attempt: for its record, and for the calls of its source or
// scope.
type decision struct {
	next step
	// wait is the delay before the next try or the scheduled retry; 0 means the delay that the
	// facet configures.
	wait              time.Duration
	countsFailure     bool // the failure counts toward maxConsecutiveTries (stepRetryNow) or toward the facet's retry rounds (stepScheduleRetry)
	limitRounds       bool // a dead letter follows after maxOwnFailures failures, even if the facet allows more rounds
	needsConfirmation bool // the dead letter is written only if a second call fails in the same way
	awaitBreaker      bool // the record gives its slot up and waits until the source's breaker closes
	requeue           bool // the record was preempted, gives its slot up and waits for its client's next turn
	action            scopeAction
	block             string // kind of the scope for actionOpenScope: a source.Block constant
	pause             time.Duration
	maxPause          time.Duration
	reason            schemas.DeadLetterReason // reason of the dead letter or of the retry
}

const (
	// maxConsecutiveTries is how many consecutive tries with a transient failure a record makes
	// before a retry is scheduled.
	maxConsecutiveTries = 3
	initialRetryDelay   = 200 * time.Millisecond // delay before the second consecutive try; it doubles with each further try
	// maxPartitionHold is how long consecutive tries may delay the commits of a partition
	// (semantics §4).
	maxPartitionHold = time.Minute

	// notReadyDelay is the delay of the retry for content that is not ready, if the upstream names
	// no delay.
	notReadyDelay = 5 * time.Minute
	// maxOwnFailures is the number of refusals, attributed to the entity itself, after which a dead
	// letter is written.
	maxOwnFailures = 3
	// outageDelay is the delay of a retry if the failure was not the entity's own, or could not be
	// attributed. The retry also waits for the source's breaker to close.
	outageDelay = 30 * time.Second
	// unreachableDelay is the delay before the next connection attempt if no call could be sent.
	unreachableDelay = 5 * time.Second

	outagePause, outageMaxPause           = 5 * time.Second, time.Minute
	maintenancePause, maintenanceMaxPause = 10 * time.Second, time.Minute
	// refusedPause is the first and refusedMaxPause the longest pause after the upstream has
	// refused a credential. Without a pause, an expired credential would make all requests fail,
	// although the requests are valid.
	refusedPause, refusedMaxPause = 5 * time.Second, 5 * time.Minute

	// maxBlock is the longest pause of a scope whose quota is used up. If a configured rule names a
	// minimum pause, the longest pause is ruleBlockFactor times that minimum, but at most
	// maxRuleBlock.
	maxBlock, maxRuleBlock = time.Minute, time.Hour
	ruleBlockFactor        = 60
	// minCallDelay is the minimum delay before the retry of a refused call. It applies to a rule
	// with `block: call`, which does not pause other calls, and to refusals of an endpoint or a
	// resource.
	minCallDelay = time.Second
)

// attemptHistory is the state of a record at the time of a decision.
type attemptHistory struct {
	calls            int           // number of calls that were sent in this attempt
	failures         int           // number of consecutive failures before this attempt that counted
	sinceFirstCall   time.Duration // time since the first of the consecutive tries began
	listedCredential bool          // the last call used a credential that the configuration lists by name
	unconfirmed      bool          // the previous call failed in the same way, and this call was made to confirm the failure
	endpointDelay    time.Duration // delay of a retry while the breaker of the record's endpoint is open
}

// allowsRetryNow reports whether the record makes another try at once, without a scheduled retry.
func (t attemptHistory) allowsRetryNow(o source.Outcome) bool {
	return o.Class == source.Transient && t.calls > 0 && t.failures+1 < maxConsecutiveTries && t.sinceFirstCall < maxPartitionHold
}

// needsVerdict reports whether the decision must wait for a verdict: whether the failure belongs to
// the entity or to the source.
func needsVerdict(o source.Outcome, t attemptHistory, d diagnosis) bool {
	switch o.Class {
	case source.AuthRefused:
		return o.Block != source.BlockCall
	case source.Quota: // no verdict is needed if the upstream names a pause, because that pause is obeyed at once
		return o.Block != source.BlockCall && o.RetryAfter == 0
	case source.Transient, source.Permanent, source.BadContent:
		return !d.open() && !t.allowsRetryNow(o)
	case source.OK, source.NotModified, source.NotFound, source.Handle, source.NotReady, source.Maintenance:
	}
	return false
}

// decide turns the outcome of an attempt into a decision, by the rules of the table in doc.go.
func decide(o source.Outcome, t attemptHistory, d diagnosis, v verdict) decision {
	requested := max(o.RetryAfter, o.Wait)
	outage := decision{next: stepScheduleRetry, wait: outageDelay, reason: schemas.Outage}
	counted := decision{next: stepScheduleRetry, countsFailure: true, limitRounds: true, reason: schemas.Upstream4xx}
	switch o.Class {
	case source.OK, source.NotModified, source.NotFound, source.Handle:
		return decision{next: stepStore}
	case source.NotReady:
		wait := notReadyDelay
		if requested > 0 {
			wait = requested
		}
		return decision{next: stepScheduleRetry, wait: wait, reason: schemas.NotReady}
	case source.Maintenance:
		outage.wait = max(requested, outageDelay)
		outage.action, outage.pause, outage.maxPause = actionOpenSource, max(requested, maintenancePause), max(requested, maintenanceMaxPause)
		return outage
	case source.Quota, source.AuthRefused:
		switch {
		case o.Block == source.BlockCall && requested > 0:
			return decision{next: stepScheduleRetry, wait: max(requested, minCallDelay), reason: schemas.Outage}
		case o.Class == source.Quota && v == entityFault:
			counted.wait = outageDelay // delay the retry: the entity whose success led to this verdict may have succeeded only because the quota had just recovered
			return counted
		case o.Block == source.BlockCall || v == entityFault:
			return counted
		case v != sharedFault && needsVerdict(o, t, d):
			return outage
		}
		return decideRefusal(o, t, requested)
	case source.Transient, source.Permanent, source.BadContent:
	}
	// A failure is attributed to the entity only while the source is healthy.
	switch {
	case d == sourceOpened:
		outage.action, outage.pause, outage.maxPause = actionOpenSource, outagePause, outageMaxPause
		return outage
	case d == endpointOpen:
		outage.wait = t.endpointDelay
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

// decideRefusal returns the decision about a call that the upstream refused for its credential or
// quota, if the refusal concerns more than the entity.
func decideRefusal(o source.Outcome, t attemptHistory, requested time.Duration) decision {
	pause, maxPause := requested, max(requested, maxBlockFor(o.Wait))
	if o.Class == source.AuthRefused {
		pause, maxPause = max(requested, refusedPause), max(requested, refusedMaxPause)
	}
	switch {
	case o.Block == source.BlockEndpoint || o.Block == source.BlockResource:
		return decision{next: stepScheduleRetry, wait: max(pause, minCallDelay), reason: schemas.Outage, action: actionOpenScope, block: o.Block, pause: pause, maxPause: maxPause}
	case o.Block == source.BlockCredential && (t.listedCredential || o.Class == source.Quota):
		// Only this credential pauses, so the other credentials can still be used. If the source
		// has only this credential, the effect is a pause of the whole source. A breaker is used
		// instead of a backoff, because it stays open longer after each further refusal.
		return decision{action: actionOpenScope, block: o.Block, pause: pause, maxPause: maxPause}
	case o.Class == source.AuthRefused:
		return decision{next: stepScheduleRetry, wait: outageDelay, reason: schemas.Outage, action: actionOpenSource, pause: pause, maxPause: maxPause}
	}
	return decision{action: actionBackOff, pause: pause}
}

// maxBlockFor returns the longest pause of a scope. `wait` is the minimum pause that a configured
// rule names for it, or 0.
func maxBlockFor(wait time.Duration) time.Duration {
	return max(maxBlock, min(ruleBlockFactor*wait, maxRuleBlock))
}

// deadLetterReason returns the reason that describes a failed fetch.
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

// readable reports whether bad content is still content of the entity, but too large or much
// smaller than before. Then the failure is evidence about the entity. Other bad content, such as an
// HTML page in place of JSON, is evidence about the source.
func readable(o source.Outcome) bool {
	return errors.Is(o.Err, errShrunk) || errors.Is(o.Err, source.ErrOversized)
}
