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
	first, third := tried{calls: 1}, tried{calls: 1, failures: 2}
	doubted := tried{calls: 1, doubted: true}
	for _, c := range []struct {
		name    string
		outcome source.Outcome
		tried   tried
		what    diagnosis
		want    decision
	}{
		{"content", source.Outcome{Class: source.OK}, first, nothing, decision{next: write}},
		{"not modified", source.Outcome{Class: source.NotModified}, first, recovered, decision{next: write}},
		{"absent is no dead letter", source.Outcome{Class: source.Absent}, first, nothing, decision{next: write}},
		{"429 without a time", source.Outcome{Class: source.Quota}, third, nothing, decision{halt: braked}},
		{"429 with one", source.Outcome{Class: source.Quota, RetryAfter: 9 * time.Second}, first, nothing, decision{halt: braked, first: 9 * time.Second}},
		{"maintenance", source.Outcome{Class: source.Maintenance}, third, nothing, decision{halt: probed, first: 10 * time.Second, most: time.Minute}},
		{"maintenance until a time", source.Outcome{Class: source.Maintenance, RetryAfter: time.Hour}, first, nothing, decision{halt: probed, first: time.Hour, most: time.Hour}},
		{"a refused credential is no dead letter", source.Outcome{Class: source.AuthRefused}, third, nothing, decision{halt: probed, first: 5 * time.Second, most: 5 * time.Minute}},
		{"429 of the source by a rule", source.Outcome{Class: source.Quota, Block: source.BlockSource, RetryAfter: time.Second, Wait: time.Minute}, first, nothing, decision{halt: braked, first: time.Minute}},
		{"429 of an endpoint", source.Outcome{Class: source.Quota, Block: source.BlockEndpoint}, third, nothing, decision{halt: parted, block: "endpoint", most: time.Minute}},
		{"429 of an endpoint with a time", source.Outcome{Class: source.Quota, Block: source.BlockEndpoint, RetryAfter: 9 * time.Second, Wait: time.Second}, first, nothing, decision{halt: parted, block: "endpoint", first: 9 * time.Second, most: time.Minute}},
		{"429 of an endpoint for longer than most", source.Outcome{Class: source.Quota, Block: source.BlockEndpoint, RetryAfter: time.Hour}, first, nothing, decision{halt: parted, block: "endpoint", first: time.Hour, most: time.Hour}},
		{"429 of a resource for a minute", source.Outcome{Class: source.Quota, Block: source.BlockResource, RetryAfter: 9 * time.Second, Wait: time.Minute}, first, nothing, decision{halt: parted, block: "resource", first: time.Minute, most: time.Hour}},
		{"429 of a resource for two seconds", source.Outcome{Class: source.Quota, Block: source.BlockResource, Wait: 2 * time.Second}, first, nothing, decision{halt: parted, block: "resource", first: 2 * time.Second, most: 2 * time.Minute}},
		{"429 of a resource for hours", source.Outcome{Class: source.Quota, Block: source.BlockResource, Wait: 3 * time.Hour}, first, nothing, decision{halt: parted, block: "resource", first: 3 * time.Hour, most: 3 * time.Hour}},
		{"429 of one of several credentials", source.Outcome{Class: source.Quota, Block: source.BlockCredential}, tried{calls: 1, named: true}, nothing, decision{halt: parted, block: "credential", most: time.Minute}},
		{"429 of the only credential", source.Outcome{Class: source.Quota, Block: source.BlockCredential, Wait: time.Minute}, first, nothing, decision{halt: parted, block: "credential", first: time.Minute, most: time.Hour}},
		{"429 of one call", source.Outcome{Class: source.Quota, Block: source.BlockCall}, third, nothing, decision{wait: time.Second, told: true}},
		{"429 of one call with a time", source.Outcome{Class: source.Quota, Block: source.BlockCall, RetryAfter: 7 * time.Second, Wait: 8 * time.Second}, third, nothing, decision{wait: 8 * time.Second, told: true}},
		{"429 of one call for too long", source.Outcome{Class: source.Quota, Block: source.BlockCall, RetryAfter: time.Hour}, first, nothing, decision{next: retry, wait: time.Hour, reason: schemas.Outage}},
		{"429 of one call for too long in a row", source.Outcome{Class: source.Quota, Block: source.BlockCall}, tried{calls: 1, pinned: time.Minute}, nothing, decision{next: retry, wait: time.Second, reason: schemas.Outage}},
		{"the only credential is refused", source.Outcome{Class: source.AuthRefused, Block: source.BlockCredential}, first, nothing, decision{halt: probed, first: 5 * time.Second, most: 5 * time.Minute}},
		{"one of several is refused", source.Outcome{Class: source.AuthRefused, Block: source.BlockCredential}, tried{calls: 1, named: true}, nothing, decision{halt: parted, block: "credential", first: 5 * time.Second, most: 5 * time.Minute}},
		{"all of several are refused", source.Outcome{Class: source.AuthRefused, Block: source.BlockSource, Wait: time.Hour}, tried{calls: 1, named: true}, nothing, decision{halt: probed, first: time.Hour, most: time.Hour}},
		{"a credential is refused at one endpoint", source.Outcome{Class: source.AuthRefused, Block: source.BlockEndpoint}, first, nothing, decision{halt: parted, block: "endpoint", first: 5 * time.Second, most: 5 * time.Minute}},
		{"maintenance for at least", source.Outcome{Class: source.Maintenance, RetryAfter: time.Second, Wait: time.Hour}, first, nothing, decision{halt: probed, first: time.Hour, most: time.Hour}},
		{"not ready for at least", source.Outcome{Class: source.NotReady, RetryAfter: time.Second, Wait: time.Hour}, first, nothing, decision{next: retry, wait: time.Hour, reason: schemas.NotReady}},
		{"not ready counts no failure", source.Outcome{Class: source.NotReady}, third, nothing, decision{next: retry, wait: 5 * time.Minute, reason: schemas.NotReady}},
		{"not ready before a time", source.Outcome{Class: source.NotReady, RetryAfter: time.Hour}, first, nothing, decision{next: retry, wait: time.Hour, reason: schemas.NotReady}},

		{"unreachable", source.Outcome{Class: source.Transient}, tried{failures: 9}, nothing, decision{wait: 5 * time.Second}},
		{"500, first", source.Outcome{Class: source.Transient, Status: 500}, first, nothing, decision{wait: 200 * time.Millisecond, counts: true}},
		{"500, second", source.Outcome{Class: source.Transient, Status: 500}, tried{calls: 1, failures: 1}, nothing, decision{wait: 400 * time.Millisecond, counts: true}},
		{"500, third", source.Outcome{Class: source.Transient, Status: 500}, third, nothing, decision{next: retry, counts: true, reason: schemas.Upstream5xx}},
		{"timeout, third", source.Outcome{Class: source.Transient}, third, nothing, decision{next: retry, counts: true, reason: schemas.Unreachable}},
		{"a slow one does not pin its partition", source.Outcome{Class: source.Transient}, tried{calls: 1, pinned: time.Minute}, nothing, decision{next: retry, counts: true, reason: schemas.Unreachable}},
		{"422", source.Outcome{Class: source.Permanent, Status: 422}, first, nothing, decision{next: bury, doubt: true, reason: schemas.Upstream4xx}},
		{"422 twice", source.Outcome{Class: source.Permanent, Status: 422}, doubted, nothing, decision{next: bury, reason: schemas.Upstream4xx}},
		{"HTML", source.Outcome{Class: source.BadContent, Err: errors.New("not JSON")}, doubted, nothing, decision{next: bury, reason: schemas.ParseError}},
		{"too large", source.Outcome{Class: source.BadContent, Err: oversized}, doubted, nothing, decision{next: bury, reason: schemas.OversizedAnswer}},

		{"500 in an outage", source.Outcome{Class: source.Transient, Status: 500}, third, fellSick, decision{halt: probed, first: 5 * time.Second, most: time.Minute}},
		{"500 in a known outage", source.Outcome{Class: source.Transient, Status: 500}, third, sickSource, decision{wait: 200 * time.Millisecond}},
		{"unreachable in an outage", source.Outcome{Class: source.Transient}, tried{}, sickSource, decision{wait: 5 * time.Second}},
		{"HTML in an outage", source.Outcome{Class: source.BadContent}, doubted, sickSource, decision{wait: 200 * time.Millisecond}},
		{"422 in an outage", source.Outcome{Class: source.Permanent}, doubted, fellSick, decision{halt: probed, first: 5 * time.Second, most: time.Minute}},
		{"500 of a sick endpoint", source.Outcome{Class: source.Transient, Status: 500}, third, sickEndpoint, decision{next: retry, wait: 2 * time.Minute, reason: schemas.Outage}},
		{"HTML of a sick endpoint", source.Outcome{Class: source.BadContent}, doubted, sickEndpoint, decision{next: retry, wait: 2 * time.Minute, reason: schemas.Outage}},
		{"a refused credential in an outage", source.Outcome{Class: source.AuthRefused}, first, sickSource, decision{halt: probed, first: 5 * time.Second, most: 5 * time.Minute}},
	} {
		if got := decide(c.outcome, c.tried, c.what); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
