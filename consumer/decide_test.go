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
	for _, c := range []struct {
		name            string
		outcome         source.Outcome
		calls, failures int
		want            decision
	}{
		{"content", source.Outcome{Class: source.OK}, 1, 0, decision{next: write}},
		{"not modified", source.Outcome{Class: source.NotModified}, 1, 0, decision{next: write}},
		{"absent is no dead letter", source.Outcome{Class: source.Absent}, 1, 0, decision{next: write}},
		{"429 without a time", source.Outcome{Class: source.Quota}, 1, 2, decision{brakes: true}},
		{"429 with one", source.Outcome{Class: source.Quota, RetryAfter: 9 * time.Second}, 1, 0, decision{brakes: true, brake: 9 * time.Second}},
		{"maintenance", source.Outcome{Class: source.Maintenance}, 1, 0, decision{brakes: true, brake: 30 * time.Second}},
		{"a refused key is no dead letter", source.Outcome{Class: source.AuthRefused}, 1, 9, decision{brakes: true, brake: 30 * time.Second}},
		{"unreachable", source.Outcome{Class: source.Transient}, 0, 9, decision{wait: 5 * time.Second}},
		{"500, first", source.Outcome{Class: source.Transient, Status: 500}, 1, 0, decision{wait: 200 * time.Millisecond, counts: true}},
		{"500, second", source.Outcome{Class: source.Transient, Status: 500}, 1, 1, decision{wait: 400 * time.Millisecond, counts: true}},
		{"500, third", source.Outcome{Class: source.Transient, Status: 500}, 1, 2, decision{next: bury, reason: schemas.Upstream5xx}},
		{"timeout, third", source.Outcome{Class: source.Transient}, 1, 2, decision{next: bury, reason: schemas.Unreachable}},
		{"not ready", source.Outcome{Class: source.NotReady}, 1, 0, decision{next: bury, reason: schemas.NotReady}},
		{"422", source.Outcome{Class: source.Permanent, Status: 422}, 1, 0, decision{next: bury, reason: schemas.Upstream4xx}},
		{"HTML", source.Outcome{Class: source.BadContent, Err: errors.New("not JSON")}, 1, 0, decision{next: bury, reason: schemas.ParseError}},
		{"too large", source.Outcome{Class: source.BadContent, Err: oversized}, 1, 0, decision{next: bury, reason: schemas.OversizedAnswer}},
	} {
		if got := decide(c.outcome, c.calls, c.failures); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
