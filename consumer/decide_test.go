package consumer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func TestDecide_CoversEachClass(t *testing.T) {
	oversized := fmt.Errorf("document: %w", source.ErrOversized)
	withRetryAfter := source.Outcome{Class: source.Quota, RetryAfter: 9 * time.Second}
	first, third := attemptHistory{calls: 1}, attemptHistory{calls: 1, failures: 2, endpointDelay: 40 * time.Second}
	unconfirmed := attemptHistory{calls: 1, unconfirmed: true}
	outage := decision{next: stepScheduleRetry, wait: outageDelay, reason: schemas.Outage}
	counted := decision{next: stepScheduleRetry, countsFailure: true, limitRounds: true, reason: schemas.Upstream4xx}
	counted429 := counted
	counted429.wait = outageDelay
	pausing := func(d decision, h scopeAction, pause, maxPause time.Duration) decision {
		d.action, d.pause, d.maxPause = h, pause, maxPause
		return d
	}
	openingScope := func(d decision, block string, pause, maxPause time.Duration) decision {
		d = pausing(d, actionOpenScope, pause, maxPause)
		d.block = block
		return d
	}
	retryAfter := func(wait time.Duration) decision {
		return decision{next: stepScheduleRetry, wait: wait, reason: schemas.Outage}
	}
	quota := func(block string, after, wait time.Duration) source.Outcome {
		return source.Outcome{Class: source.Quota, Block: block, RetryAfter: after, Wait: wait}
	}
	auth := source.Outcome{Class: source.AuthRefused, Block: source.BlockCredential}
	five, minute := 5*time.Second, time.Minute
	for _, c := range []struct {
		name    string
		outcome source.Outcome
		history attemptHistory
		diag    diagnosis
		verdict verdict
		want    decision
	}{
		{"content", source.Outcome{Class: source.OK}, first, noDiagnosis, faultUnknown, decision{next: stepStore}},
		{"not modified", source.Outcome{Class: source.NotModified}, first, recovered, faultUnknown, decision{next: stepStore}},
		{"not found is no dead letter", source.Outcome{Class: source.NotFound}, first, noDiagnosis, faultUnknown, decision{next: stepStore}},
		{"not ready", source.Outcome{Class: source.NotReady, RetryAfter: time.Second, Wait: time.Hour}, third, noDiagnosis, faultUnknown, decision{next: stepScheduleRetry, wait: time.Hour, reason: schemas.NotReady}},
		{"maintenance", source.Outcome{Class: source.Maintenance}, third, noDiagnosis, faultUnknown, pausing(outage, actionOpenSource, 10*time.Second, minute)},
		{"maintenance until a time", source.Outcome{Class: source.Maintenance, RetryAfter: time.Hour}, first, noDiagnosis, faultUnknown, pausing(retryAfter(time.Hour), actionOpenSource, time.Hour, time.Hour)},

		{"429 with Retry-After is obeyed at once", withRetryAfter, first, noDiagnosis, faultUnknown, decision{action: actionBackOff, pause: 9 * time.Second}},
		{"429 without Retry-After, not confirmed", quota(source.BlockSource, 0, 0), third, noDiagnosis, faultUnknown, outage},
		{"429 without Retry-After, without a known-good entity", quota(source.BlockSource, 0, 0), third, noDiagnosis, noKnownGood, outage},
		{"429 without Retry-After, confirmed", quota(source.BlockSource, 0, 0), third, noDiagnosis, sharedFault, decision{action: actionBackOff}},
		{"429 of one entity", quota(source.BlockSource, 0, 0), third, noDiagnosis, entityFault, counted429},
		{"the wait of a rule must be confirmed", quota(source.BlockSource, 0, minute), first, noDiagnosis, faultUnknown, outage},
		{"the wait of a rule, confirmed", quota(source.BlockSource, 0, minute), first, noDiagnosis, sharedFault, decision{action: actionBackOff, pause: minute}},
		{"429 of an endpoint with Retry-After", quota(source.BlockEndpoint, 9*time.Second, time.Second), first, noDiagnosis, faultUnknown, openingScope(retryAfter(9*time.Second), "endpoint", 9*time.Second, minute)},
		{"429 of a resource, confirmed", quota(source.BlockResource, 0, 2*time.Second), first, noDiagnosis, sharedFault, openingScope(retryAfter(2*time.Second), "resource", 2*time.Second, 2*minute)},
		{"429 of a credential, confirmed", quota(source.BlockCredential, 0, 0), attemptHistory{calls: 1, listedCredential: true}, noDiagnosis, sharedFault, openingScope(decision{}, "credential", 0, minute)},
		{"429 of the only credential", quota(source.BlockCredential, time.Minute, 0), first, noDiagnosis, faultUnknown, openingScope(decision{}, "credential", minute, minute)},
		{"429 of one call with Retry-After", quota(source.BlockCall, 7*time.Second, 8*time.Second), third, noDiagnosis, faultUnknown, retryAfter(8 * time.Second)},
		{"429 of one call", quota(source.BlockCall, 0, 0), third, noDiagnosis, faultUnknown, counted},

		{"401 of one entity", auth, third, noDiagnosis, entityFault, counted},
		{"401, not confirmed", auth, third, noDiagnosis, faultUnknown, outage},
		{"the only credential is refused", auth, first, noDiagnosis, sharedFault, pausing(outage, actionOpenSource, five, 5*minute)},
		{"one of several credentials is refused", auth, attemptHistory{calls: 1, listedCredential: true}, noDiagnosis, sharedFault, openingScope(decision{}, "credential", five, 5*minute)},
		{"a credential is refused at one endpoint", source.Outcome{Class: source.AuthRefused, Block: source.BlockEndpoint}, first, noDiagnosis, sharedFault, openingScope(retryAfter(five), "endpoint", five, 5*minute)},

		{"unreachable, not confirmed", source.Outcome{Class: source.Transient}, attemptHistory{failures: 9}, noDiagnosis, faultUnknown, outage},
		{"500, first", source.Outcome{Class: source.Transient, Status: 500}, first, noDiagnosis, faultUnknown, decision{wait: 200 * time.Millisecond, countsFailure: true}},
		{"500, second", source.Outcome{Class: source.Transient, Status: 500}, attemptHistory{calls: 1, failures: 1}, noDiagnosis, faultUnknown, decision{wait: 400 * time.Millisecond, countsFailure: true}},
		{"500, third, entity fault", source.Outcome{Class: source.Transient, Status: 500}, third, noDiagnosis, entityFault, decision{next: stepScheduleRetry, countsFailure: true, reason: schemas.Upstream5xx}},
		{"500, third, without a known-good entity", source.Outcome{Class: source.Transient, Status: 500}, third, noDiagnosis, noKnownGood, outage},
		{"a slow record does not hold up its partition", source.Outcome{Class: source.Transient}, attemptHistory{calls: 1, sinceFirstCall: minute}, noDiagnosis, entityFault, decision{next: stepScheduleRetry, countsFailure: true, reason: schemas.Unreachable}},
		{"422", source.Outcome{Class: source.Permanent, Status: 422}, first, noDiagnosis, entityFault, decision{next: stepDeadLetter, wait: initialRetryDelay, needsConfirmation: true, reason: schemas.Upstream4xx}},
		{"422 twice", source.Outcome{Class: source.Permanent, Status: 422}, unconfirmed, noDiagnosis, entityFault, decision{next: stepDeadLetter, wait: initialRetryDelay, reason: schemas.Upstream4xx}},
		{"422 twice, without a known-good entity", source.Outcome{Class: source.Permanent, Status: 422}, unconfirmed, noDiagnosis, noKnownGood, decision{next: stepDeadLetter, wait: initialRetryDelay, reason: schemas.Upstream4xx}},
		{"422 twice, not confirmed", source.Outcome{Class: source.Permanent, Status: 422}, unconfirmed, noDiagnosis, faultUnknown, outage},
		{"HTML", source.Outcome{Class: source.BadContent, Err: errors.New("not JSON")}, unconfirmed, noDiagnosis, entityFault, decision{next: stepDeadLetter, wait: initialRetryDelay, reason: schemas.ParseError}},
		{"HTML, without a known-good entity", source.Outcome{Class: source.BadContent, Err: errors.New("not JSON")}, unconfirmed, noDiagnosis, noKnownGood, outage},
		{"too large", source.Outcome{Class: source.BadContent, Err: oversized}, unconfirmed, noDiagnosis, noKnownGood, decision{next: stepDeadLetter, wait: initialRetryDelay, reason: schemas.OversizedAnswer}},

		{"500 that opens the breaker", source.Outcome{Class: source.Transient, Status: 500}, third, sourceOpened, faultUnknown, pausing(outage, actionOpenSource, five, minute)},
		{"500 while the breaker is open", source.Outcome{Class: source.Transient, Status: 500}, first, sourceOpen, faultUnknown, outage},
		{"HTML while the breaker is open", source.Outcome{Class: source.BadContent}, unconfirmed, sourceOpen, sharedFault, outage},
		{"500 of an open endpoint", source.Outcome{Class: source.Transient, Status: 500}, third, endpointOpen, faultUnknown, retryAfter(third.endpointDelay)},
	} {
		if got := decide(c.outcome, c.history, c.diag, c.verdict); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}
