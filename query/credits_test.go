package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/store/sqlite"
)

// paying returns a query service (rig) whose client pays for refreshes and has a plan of three credits
// a day.
func paying(t *testing.T) (*rig, *credits.Service) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	config := credits.DefaultConfig()
	config.Plans = map[string]credits.Plan{"default": {Amount: 3, Every: 24 * time.Hour}}
	r := newRig(t)
	s := credits.New(config, credits.Deps{Store: db, Snapshots: db, Actor: func(*http.Request) string { return "" }, Now: time.Now, Log: r.server.log, Metrics: prometheus.NewRegistry()})
	r = newRig(t, func(r *rig) { r.credits = s })
	r.client = access.Client{Name: "key:1 a", Scopes: []access.Scope{access.Read, access.Refresh}}
	return r, s
}

func (r *rig) wantBalance(balance, held string) {
	r.Helper()
	a := r.do(http.MethodGet, "/v1/credits")
	if want := `"balance":` + balance + `,"held":` + held; a.StatusCode != 200 || !strings.Contains(a.text, want) {
		r.Errorf("credits: got %d %s, want %s", a.StatusCode, a.text, want)
	}
}

func TestCredits_RefuseARefreshWithoutCredits(t *testing.T) {
	r, _ := paying(t)
	r.wantBalance("3", "0")
	for _, key := range []string{"a", "b", "c"} {
		if a := r.refresh(key); a.StatusCode != 202 {
			t.Fatalf("refresh of %s: got %d %s, want 202", key, a.StatusCode, a.text)
		}
	}
	r.wantBalance("0", "3")
	a := r.refresh("d")
	if a.StatusCode != 429 || a.body.Code != "credits-exhausted" || a.Header.Get("RateLimit-Policy") != `"credits";q=3;w=86400` || len(a.Header.Get("Retry-After")) != 5 {
		t.Errorf("got %d %s, %v, want 429 credits-exhausted with RateLimit-Policy and Retry-After", a.StatusCode, a.text, a.Header)
	}
	if n := len(r.enqueued()); n != 3 {
		t.Errorf("enqueued requests: got %d, want 3", n)
	}
	if a := r.get("a"); a.StatusCode != 202 && a.StatusCode != 200 {
		t.Errorf("read without credits: got %d %s, want 200 or 202", a.StatusCode, a.text)
	}
}

func TestCredits_ReturnIfNothingIsQueued(t *testing.T) {
	r, _ := paying(t)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: ReasonDown} }
	if a := r.refresh("a"); a.StatusCode != 503 {
		t.Errorf("got %d %s, want 503", a.StatusCode, a.text)
	}
	r.wantBalance("3", "0")
}

func TestCredits_RepeatedRefreshIsPaidOnce(t *testing.T) {
	r, _ := paying(t)
	first := r.refreshWith("a", "k1")
	r.set(func() { r.refreshNumbers = nil }) // simulate that Redis has lost the idempotency key
	again := r.refreshWith("a", "k1")
	if first.StatusCode != 202 || again.StatusCode != 202 || len(r.enqueued()) != 1 {
		t.Errorf("got %d, then %d and %d enqueued requests, want 202 twice and 1", first.StatusCode, again.StatusCode, len(r.enqueued()))
	}
	r.wantBalance("2", "1")
}

func TestCredits_OfSeveralKeysAnswerEachKey(t *testing.T) {
	r, _ := paying(t)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/nexon/character/refresh", strings.NewReader(`{"keys":["a","b","c","d"]}`))
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	a := r.checked(req, rec)
	if a.StatusCode != 207 || len(a.body.Items) != 4 || a.body.Items[2].Status != 202 || a.body.Items[3].Status != 429 || a.body.Items[3].Refresh.Reason != ReasonNoCredits {
		t.Errorf("got %d %s, want 207 with 429 NO_CREDITS for the last key", a.StatusCode, a.text)
	}
	r.wantBalance("0", "3")
}

func TestCredits_AreFreeForAdministrators(t *testing.T) {
	r, _ := paying(t)
	r.client = everything
	for _, key := range []string{"a", "b", "c", "d"} {
		if a := r.refresh(key); a.StatusCode != 202 {
			t.Errorf("refresh of %s: got %d %s, want 202", key, a.StatusCode, a.text)
		}
	}
	if a := r.do(http.MethodGet, "/v1/credits"); a.StatusCode != 404 || a.body.Code != "no-such-credits" {
		t.Errorf("credits: got %d %s, want 404", a.StatusCode, a.text)
	}
}
