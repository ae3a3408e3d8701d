package consumer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func TestEachClassHasItsEnd(t *testing.T) {
	oversized := fmt.Errorf("document: %w", source.ErrOversized)
	told := source.Outcome{Class: source.Quota, RetryAfter: 9 * time.Second}
	first, third := tried{calls: 1}, tried{calls: 1, failures: 2}
	doubted := tried{calls: 1, doubted: true}
	outage := decision{next: retry, wait: outageWait, reason: schemas.Outage}
	counted := decision{next: retry, counts: true, few: true, reason: schemas.Upstream4xx}
	counted429 := counted
	counted429.wait = outageWait
	halted := func(d decision, h halt, first, most time.Duration) decision {
		d.halt, d.first, d.most = h, first, most
		return d
	}
	part := func(d decision, block string, first, most time.Duration) decision {
		d = halted(d, parted, first, most)
		d.block = block
		return d
	}
	later := func(wait time.Duration) decision { return decision{next: retry, wait: wait, reason: schemas.Outage} }
	quota := func(block string, after, wait time.Duration) source.Outcome {
		return source.Outcome{Class: source.Quota, Block: block, RetryAfter: after, Wait: wait}
	}
	auth := source.Outcome{Class: source.AuthRefused, Block: source.BlockCredential}
	five, minute := 5*time.Second, time.Minute
	for _, c := range []struct {
		name    string
		outcome source.Outcome
		tried   tried
		what    diagnosis
		verdict verdict
		want    decision
	}{
		{"content", source.Outcome{Class: source.OK}, first, nothing, unknown, decision{next: write}},
		{"not modified", source.Outcome{Class: source.NotModified}, first, recovered, unknown, decision{next: write}},
		{"absent is no dead letter", source.Outcome{Class: source.NotFound}, first, nothing, unknown, decision{next: write}},
		{"not ready", source.Outcome{Class: source.NotReady, RetryAfter: time.Second, Wait: time.Hour}, third, nothing, unknown, decision{next: retry, wait: time.Hour, reason: schemas.NotReady}},
		{"maintenance", source.Outcome{Class: source.Maintenance}, third, nothing, unknown, halted(outage, probed, 10*time.Second, minute)},
		{"maintenance until a time", source.Outcome{Class: source.Maintenance, RetryAfter: time.Hour}, first, nothing, unknown, halted(later(time.Hour), probed, time.Hour, time.Hour)},

		{"429 with a time is believed at once", told, first, nothing, unknown, decision{halt: braked, first: 9 * time.Second}},
		{"429 without a time, not confirmed", quota(source.BlockSource, 0, 0), third, nothing, unknown, outage},
		{"429 without a time, nobody to ask", quota(source.BlockSource, 0, 0), third, nothing, noKnown, outage},
		{"429 without a time, confirmed", quota(source.BlockSource, 0, 0), third, nothing, shared, decision{halt: braked}},
		{"429 of one entity", quota(source.BlockSource, 0, 0), third, nothing, own, counted429},
		{"a rule's wait is not the upstream's word", quota(source.BlockSource, 0, minute), first, nothing, unknown, outage},
		{"a rule's wait, confirmed", quota(source.BlockSource, 0, minute), first, nothing, shared, decision{halt: braked, first: minute}},
		{"429 of an endpoint with a time", quota(source.BlockEndpoint, 9*time.Second, time.Second), first, nothing, unknown, part(later(9*time.Second), "endpoint", 9*time.Second, minute)},
		{"429 of a resource, confirmed", quota(source.BlockResource, 0, 2*time.Second), first, nothing, shared, part(later(2*time.Second), "resource", 2*time.Second, 2*minute)},
		{"429 of a credential, confirmed", quota(source.BlockCredential, 0, 0), tried{calls: 1, named: true}, nothing, shared, part(decision{}, "credential", 0, minute)},
		{"429 of the only credential", quota(source.BlockCredential, time.Minute, 0), first, nothing, unknown, part(decision{}, "credential", minute, minute)},
		{"429 of one call with a time", quota(source.BlockCall, 7*time.Second, 8*time.Second), third, nothing, unknown, later(8 * time.Second)},
		{"429 of one call", quota(source.BlockCall, 0, 0), third, nothing, unknown, counted},

		{"401 of one entity", auth, third, nothing, own, counted},
		{"401, not confirmed", auth, third, nothing, unknown, outage},
		{"the only credential is refused", auth, first, nothing, shared, halted(outage, probed, five, 5*minute)},
		{"one of several is refused", auth, tried{calls: 1, named: true}, nothing, shared, part(decision{}, "credential", five, 5*minute)},
		{"a credential is refused at one endpoint", source.Outcome{Class: source.AuthRefused, Block: source.BlockEndpoint}, first, nothing, shared, part(later(five), "endpoint", five, 5*minute)},

		{"unreachable, not confirmed", source.Outcome{Class: source.Transient}, tried{failures: 9}, nothing, unknown, outage},
		{"500, first", source.Outcome{Class: source.Transient, Status: 500}, first, nothing, unknown, decision{wait: 200 * time.Millisecond, counts: true}},
		{"500, second", source.Outcome{Class: source.Transient, Status: 500}, tried{calls: 1, failures: 1}, nothing, unknown, decision{wait: 400 * time.Millisecond, counts: true}},
		{"500, third, its own", source.Outcome{Class: source.Transient, Status: 500}, third, nothing, own, decision{next: retry, counts: true, reason: schemas.Upstream5xx}},
		{"500, third, nobody to ask", source.Outcome{Class: source.Transient, Status: 500}, third, nothing, noKnown, outage},
		{"a slow one does not pin its partition", source.Outcome{Class: source.Transient}, tried{calls: 1, pinned: minute}, nothing, own, decision{next: retry, counts: true, reason: schemas.Unreachable}},
		{"422", source.Outcome{Class: source.Permanent, Status: 422}, first, nothing, own, decision{next: bury, wait: firstWait, doubt: true, reason: schemas.Upstream4xx}},
		{"422 twice", source.Outcome{Class: source.Permanent, Status: 422}, doubted, nothing, own, decision{next: bury, wait: firstWait, reason: schemas.Upstream4xx}},
		{"422 twice, nobody to ask", source.Outcome{Class: source.Permanent, Status: 422}, doubted, nothing, noKnown, decision{next: bury, wait: firstWait, reason: schemas.Upstream4xx}},
		{"422 twice, not confirmed", source.Outcome{Class: source.Permanent, Status: 422}, doubted, nothing, unknown, outage},
		{"HTML", source.Outcome{Class: source.BadContent, Err: errors.New("not JSON")}, doubted, nothing, own, decision{next: bury, wait: firstWait, reason: schemas.ParseError}},
		{"HTML, nobody to ask", source.Outcome{Class: source.BadContent, Err: errors.New("not JSON")}, doubted, nothing, noKnown, outage},
		{"too large", source.Outcome{Class: source.BadContent, Err: oversized}, doubted, nothing, noKnown, decision{next: bury, wait: firstWait, reason: schemas.OversizedAnswer}},

		{"500 that opens the breaker", source.Outcome{Class: source.Transient, Status: 500}, third, sourceOpened, unknown, halted(outage, probed, five, minute)},
		{"500 while it is open", source.Outcome{Class: source.Transient, Status: 500}, first, sourceOpen, unknown, outage},
		{"HTML while it is open", source.Outcome{Class: source.BadContent}, doubted, sourceOpen, shared, outage},
		{"500 of an open endpoint", source.Outcome{Class: source.Transient, Status: 500}, third, endpointOpen, unknown, later(endpointWait)},
	} {
		if got := decide(c.outcome, c.tried, c.what, c.verdict); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
