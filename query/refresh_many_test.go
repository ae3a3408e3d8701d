package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const manyPath = "/v1/nexon/character/refresh"

// refreshMany sends one refresh of several keys and returns the response.
func (r *rig) refreshMany(keys ...string) answer {
	r.Helper()
	text, err := json.Marshal(map[string][]string{"keys": keys})
	if err != nil {
		r.Fatal(err)
	}
	return r.post(manyPath, string(text))
}

func (r *rig) post(target, body string) answer {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), http.MethodPost, target, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	return r.checked(req, rec)
}

// items returns key, status and reason of each item.
func (a answer) items() (all []string) {
	for _, it := range a.body.Items {
		reason := ""
		if it.Refresh.Reason != "" {
			reason = string(it.Refresh.Reason)
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %d %s", it.Key, it.Status, reason)))
	}
	return all
}

func TestRefreshMany_QueuesEachKeyAsAPersonsRequest(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	a := r.refreshMany("b/ c", "a")
	if want := []string{"b/ c 202", "a 202"}; a.StatusCode != http.StatusAccepted || !slices.Equal(a.items(), want) {
		t.Errorf("got %d %q, want 202 %q", a.StatusCode, a.items(), want)
	}
	all := r.enqueued()
	if len(all) != 2 || all[0].Entity != entity("b/ c") || all[0].Floor != 0 || !all[0].New || all[1].Floor != 7 || all[1].New {
		t.Fatalf("requests: got %+v, want one of the new key and one above version 7", all)
	}
	for _, w := range all {
		if w.Reason != schemas.UserRequest || w.Client != everything.ID() || w.Cooldown == 0 || w.CorrelationID == "" {
			t.Errorf("request: got %+v, want a user's request with client, cool-down and correlation id", w)
		}
	}
}

// Each key must have its own result. A refused key must not affect the other keys.
func TestRefreshMany_AnswersForEachKey(t *testing.T) {
	r := newRig(t, func(r *rig) {
		r.limits = func(key string) string {
			if strings.HasPrefix(key, "hidden") {
				return "partner"
			}
			return ""
		}
	})
	r.client = access.Client{Name: "key:1", Scopes: []access.Scope{access.Refresh}}
	until := time.Now().Add(30 * time.Second).UTC().Truncate(time.Millisecond)
	answers := map[string]EnqueueResult{
		"good": {Queued: true, Number: 5}, "cooling": {Reason: ReasonCooldown, Until: until}, "down": {Reason: ReasonDown},
		"pending": {Pending: true}, "mine": {Reason: ReasonOutstanding, Refused: &access.Refusal{Max: 7, After: time.Second}},
		"held": {Reason: "HELD_FAILED", Until: until},
	}
	r.enqueueAndWait = func(_ context.Context, w UpdateRequest) EnqueueResult { return answers[w.Entity.Key] }
	a := r.refreshMany("hidden", "cooling", "bad-x", "good", "down", "", "pending", "mine", "held")
	want := []string{
		"hidden 404 NOT_FOUND", "cooling 429 COOLDOWN", "bad-x 400 BAD_KEY", "good 202", "down 503 UNAVAILABLE", "400 BAD_KEY",
		"pending 503 PENDING", "mine 429 TOO_MANY_OUTSTANDING", "held 503 HELD_FAILED",
	}
	if a.StatusCode != http.StatusMultiStatus || !slices.Equal(a.items(), want) {
		t.Errorf("got %d %q, want 207 %q", a.StatusCode, a.items(), want)
	}
	if at := a.body.Items[1].Refresh.Until; at == nil || !at.Equal(until) {
		t.Errorf("the end of the cool-down: got %v, want %v", at, until)
	}
}

func TestRefreshMany_BoundsTheClientByEachKey(t *testing.T) {
	r := newRig(t)
	r.refreshMany("a", "b", "c")
	for _, want := range []string{"requests ip:192.0.2.1 1", "requests ip:192.0.2.1 2"} {
		if !slices.Contains(r.limiterCalls, want) {
			t.Errorf("counted: got %q, want %q", r.limiterCalls, want)
		}
	}
	r.exceeded["requests"] = true
	if a := r.refreshMany("f"); a.StatusCode != http.StatusTooManyRequests || len(r.enqueued()) != 3 {
		t.Errorf("too many requests: got %d, %d queued, want 429 and the 3 from before", a.StatusCode, len(r.enqueued()))
	}
}

func TestRefreshMany_NeedsTheScopeRefresh(t *testing.T) {
	r := newRig(t)
	r.client = access.Client{Name: "key:1", Scopes: []access.Scope{access.Read}}
	if a := r.refreshMany("a"); a.StatusCode != http.StatusForbidden || len(r.enqueued()) != 0 {
		t.Errorf("got %d, %d queued, want 403 and none", a.StatusCode, len(r.enqueued()))
	}
}

func TestRefreshMany_RejectsABodyItCannotUse(t *testing.T) {
	r := newRig(t)
	many := `"k"`
	for i := range maxKeys {
		many += fmt.Sprintf(`,"k%d"`, i)
	}
	for body, want := range map[string]int{
		``: 400, `[]`: 400, `null`: 400, `{}`: 400, `{"keys":[]}`: 400, `{"keys":"a"}`: 400, `{"keys":[5]}`: 400, `{"keys":["a"],"wait":"5s"}`: 400,
		`{"keys":["a"]} x`: 400, `{"keys":["a","b","a"]}`: 400, `{"keys":[` + many + `]}`: 400, "{\"keys\":[\"\xff\"]}": 400,
		`{"keys":["` + strings.Repeat("a", maxRefreshBody) + `"]}`: 413,
	} {
		if a := r.post(manyPath, body); a.StatusCode != want {
			t.Errorf("%.60q: got %d %s, want %d", body, a.StatusCode, a.text, want)
		}
	}
	for target, want := range map[string]int{
		manyPath + "?wait=1s": 400, "/v1/other/character/refresh": 404, "/v1/nexon/other/refresh": 404,
	} {
		if a := r.post(target, `{"keys":["a"]}`); a.StatusCode != want {
			t.Errorf("%s: got %d, want %d", target, a.StatusCode, want)
		}
	}
	if n := len(r.enqueued()); n != 0 {
		t.Errorf("queued: got %d, want 0", n)
	}
}

// The key of an entity may be "refresh", although the path of a refresh ends with the same word. A
// GET of that key must read the entity.
func TestRefreshMany_LeavesTheKeyRefreshAlone(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("refresh", 0)
	if a := r.get("refresh"); a.StatusCode != http.StatusOK || a.body.Freshness != store.Fresh {
		t.Errorf("a read of the key refresh: got %d %s, want 200 FRESH", a.StatusCode, a.text)
	}
	if a := r.refresh("refresh"); a.StatusCode != http.StatusAccepted {
		t.Errorf("a refresh of the key refresh: got %d %s, want 202", a.StatusCode, a.text)
	}
}

// If the database fails, the stored versions are unknown. The refreshes must be queued anyway.
func TestRefreshMany_QueuesWithoutTheDatabase(t *testing.T) {
	r := newRig(t)
	r.set(func() { r.storeErr = fmt.Errorf("the database is unavailable") })
	if a := r.refreshMany("a", "b"); a.StatusCode != http.StatusAccepted || len(r.enqueued()) != 2 {
		t.Errorf("got %d %s, %d queued, want 202 and 2", a.StatusCode, a.text, len(r.enqueued()))
	}
}
