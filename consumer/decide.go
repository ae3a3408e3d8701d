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
	counts bool // as a failure: of the tries in a row if again, of the rounds if retry
	few    bool // of those rounds there are maxOwn at most
	doubt  bool // a bury that is sure only if it comes to that once more
	held   bool // it waits, without a slot, until the source's breaker closes
	turn   bool // it was preempted and waits, without a slot, for its client's next turn
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
	// maxOwn is the number of failures of its own after which a refused entity becomes a
	// dead letter.
	maxOwn = 3
	// outageWait is before the retry of a call whose failure was not the entity's, or not
	// known to be. While the source's breaker is open the retry waits for it besides.
	outageWait = 30 * time.Second
	// endpointWait spreads the retries of an endpoint whose breaker is open.
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
	// callWait is the shortest time before a call that alone was refused is made again.
	callWait = time.Second
)

// tried is what was done for a record before.
type tried struct {
	calls    int           // sent in this attempt
	failures int           // counted in a row, without this one
	pinned   time.Duration // since its first call
	named    bool          // the last call went with a credential that is listed by a name
	doubted  bool          // it failed so before, and is asked once more
}

// tryAgain reports whether a failure is followed by another try at once.
func (t tried) tryAgain(o source.Outcome) bool {
	return o.Class == source.Transient && t.calls > 0 && t.failures+1 < triesInARow && t.pinned < pinMost
}

// needsVerdict reports whether it has to be known whose the failure is.
func needsVerdict(o source.Outcome, t tried, d diagnosis) bool {
	switch o.Class {
	case source.AuthRefused:
		return o.Block != source.BlockCall
	case source.Quota: // the upstream's own word is believed at once
		return o.Block != source.BlockCall && o.RetryAfter == 0
	case source.Transient, source.Permanent, source.BadContent:
		return !d.open() && !t.tryAgain(o)
	case source.OK, source.NotModified, source.NotFound, source.NotReady, source.Maintenance:
	}
	return false
}

// decide is the one place where a class becomes an action (see doc.go).
func decide(o source.Outcome, t tried, d diagnosis, v verdict) decision {
	asked := max(o.RetryAfter, o.Wait)
	outage := decision{next: retry, wait: outageWait, reason: schemas.Outage}
	counted := decision{next: retry, counts: true, few: true, reason: schemas.Upstream4xx}
	switch o.Class {
	case source.OK, source.NotModified, source.NotFound:
		return decision{next: write}
	case source.NotReady:
		wait := notReadyWait
		if asked > 0 {
			wait = asked
		}
		return decision{next: retry, wait: wait, reason: schemas.NotReady}
	case source.Maintenance:
		outage.wait = max(asked, outageWait)
		outage.halt, outage.first, outage.most = probed, max(asked, maintenanceFirst), max(asked, maintenanceMost)
		return outage
	case source.Quota, source.AuthRefused:
		switch {
		case o.Block == source.BlockCall && asked > 0:
			return decision{next: retry, wait: max(asked, callWait), reason: schemas.Outage}
		case o.Class == source.Quota && v == own:
			counted.wait = outageWait // a pause of the upstream may just have ended
			return counted
		case o.Block == source.BlockCall || v == own:
			return counted
		case v != shared && needsVerdict(o, t, d):
			return outage
		}
		return refused(o, t, asked)
	case source.Transient, source.Permanent, source.BadContent:
	}
	// A failure. It is the entity's only if the source is healthy.
	switch {
	case d == sourceOpened:
		outage.halt, outage.first, outage.most = probed, outageFirst, outageMost
		return outage
	case d == endpointOpen:
		outage.wait = endpointWait
		return outage
	case d.open():
		return outage
	case t.tryAgain(o):
		return decision{wait: firstWait << t.failures, counts: true}
	case v == own && o.Class == source.Transient:
		return decision{next: retry, counts: true, reason: failure(o)}
	case v == own || (v == noKnown && evidenceOf(o) == ofEntity):
		return decision{next: bury, wait: firstWait, doubt: !t.doubted, reason: failure(o)}
	}
	return outage
}

// refused is what follows where a refusal is believed of more than its entity.
func refused(o source.Outcome, t tried, asked time.Duration) decision {
	first, most := asked, max(asked, blockedFor(o.Wait))
	if o.Class == source.AuthRefused {
		first, most = max(asked, refusedFirst), max(asked, refusedMost)
	}
	switch {
	case o.Block == source.BlockEndpoint || o.Block == source.BlockResource:
		return decision{next: retry, wait: max(first, callWait), reason: schemas.Outage, halt: parted, block: o.Block, first: first, most: most}
	case o.Block == source.BlockCredential && (t.named || o.Class == source.Quota):
		// The others may go on. The only one is the whole source; but a halt for its
		// quota is longer with each refusal, which a brake is not.
		return decision{halt: parted, block: o.Block, first: first, most: most}
	case o.Class == source.AuthRefused:
		return decision{next: retry, wait: outageWait, reason: schemas.Outage, halt: probed, first: first, most: most}
	}
	return decision{halt: braked, first: first}
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

// readable reports whether bad content could be read: then it says something of its
// entity. A page in place of JSON does not.
func readable(o source.Outcome) bool {
	return errors.Is(o.Err, errShrunk) || errors.Is(o.Err, source.ErrOversized)
}
