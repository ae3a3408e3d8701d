package query

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestResponses_LeaveOutMembersWithoutValue(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("fresh", time.Minute)
	r.putSnapshot("stale", 2*time.Hour)
	for target, want := range map[string]string{
		"character/fresh":                       `"lastCheckedAt":"`,
		"character/stale":                       `"refresh":{"queued":true`,
		"character/new":                         `{"freshness":"UPDATING","refresh":{"queued":true`,
		"character?key=new&key=fresh&key=other": `{"key":"new","status":202,"freshness":"UPDATING","refresh":{"queued":true`,
	} {
		a := r.do(http.MethodGet, "/v1/nexon/"+target)
		if !strings.Contains(a.text, want) {
			t.Errorf("%s: got %s, want %s", target, a.text, want)
		}
		if strings.Contains(a.text, "null") {
			t.Errorf("%s: got %s, want no null", target, a.text)
		}
	}
	if a := r.get("fresh"); strings.Contains(a.text, "refresh") {
		t.Errorf("fresh: got %s, want no refresh", a.text)
	}
}

// TestHeld_IsMissing checks that no response says UPDATING for an entity that nobody updates.
func TestHeld_IsMissing(t *testing.T) {
	r := newRig(t)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: "HELD_FAILED"} }
	if a := r.get("a"); a.body.Freshness != freshnessMissing {
		t.Errorf("read: got %s, want MISSING", a.text)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=a"); a.body.Items[0].Freshness != freshnessMissing {
		t.Errorf("batch: got %s, want MISSING", a.text)
	}
	if e := r.follow("a", "").expect("state", freshnessMissing); e.data.Refresh.Reason != "HELD_FAILED" {
		t.Errorf("event: got reason %s, want HELD_FAILED", e.data.Refresh.Reason)
	}
}
