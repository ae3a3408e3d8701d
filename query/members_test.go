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

// TestHeld_IsMissing checks that the freshness of an entity without a snapshot is MISSING, and not
// UPDATING, while the entity is held: no update request is queued for it.
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

// TestBlocked_HasAReasonAndNoEstimate checks a queued refresh of a source that sends no calls.
func TestBlocked_HasAReasonAndNoEstimate(t *testing.T) {
	for name, c := range map[string]struct {
		reason RefreshReason
		after  time.Duration // time until the source may send calls again; 0 means unknown
		want   string        // value of the Retry-After header, in seconds
	}{
		"stopped":                  {ReasonStopped, 0, "30"},
		"probe is due":             {ReasonUpstreamDown, 0, "30"},
		"long backoff":             {ReasonBackingOff, time.Hour, "30"},
		"backoff that just ends":   {ReasonBackingOff, time.Millisecond, "1"},
		"probe in a known time":    {ReasonUpstreamDown, 5 * time.Second, "5"},
		"estimate above the limit": {"", 0, "30"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.wait, r.blocked = time.Hour, c.reason
			if c.after > 0 {
				r.blockedUntil = time.Now().Add(c.after)
			}
			a := r.get("new")
			got := a.body.Refresh
			if a.StatusCode != 202 || !got.Queued || got.Reason != c.reason {
				t.Errorf("got %d %s, want 202 with a queued refresh and the reason %q", a.StatusCode, a.text, c.reason)
			}
			if (got.EstimatedWaitMs == nil) != (c.reason != "") {
				t.Errorf("got %s, want an estimate only without a reason", a.text)
			}
			if (got.Until == nil) != (c.after == 0) {
				t.Errorf("got %s, want until only if it is known", a.text)
			}
			if after := a.Header.Get("Retry-After"); after != c.want {
				t.Errorf("Retry-After: got %s, want %s", after, c.want)
			}
			if batch := r.do(http.MethodGet, "/v1/nexon/character?key=new"); batch.body.Items[0].Refresh.Reason != c.reason {
				t.Errorf("batch: got %s, want the reason %q", batch.text, c.reason)
			}
			if e := r.follow("new", "").expect("state", "UPDATING"); e.data.Refresh.Reason != c.reason {
				t.Errorf("event: got reason %q, want %q", e.data.Refresh.Reason, c.reason)
			}
			if a := r.refresh("new"); a.StatusCode != 202 || a.body.Refresh.Reason != c.reason {
				t.Errorf("refresh: got %d %s, want 202 with the reason %q", a.StatusCode, a.text, c.reason)
			}
		})
	}
}
