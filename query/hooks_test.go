package query

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
	"github.com/freshet/freshet/webhooks"
)

const hookSecret = "a-secret-of-sixteen"

// hookQueue is an enqueuer that records the requests of webhooks.
type hookQueue struct{ requests []webhooks.Request }

func (q *hookQueue) EnqueueAndWait(_ context.Context, all []webhooks.Request) []webhooks.Result {
	q.requests = append(q.requests, all...)
	results := make([]webhooks.Result, len(all))
	for i := range results {
		results[i] = webhooks.Result{Outcome: webhooks.Queued, Number: 9}
	}
	return results
}

// hookKeys accepts keys of the facet of the test, and of no other facet.
type hookKeys struct{}

func (hookKeys) CheckKey(_, key string) error { return schemas.CheckKey(key) }
func (hookKeys) Fold(_, key string) string    { return key }

// newHookRig returns a query service with the webhook "changes" of the source "nexon". The entities a
// and b are stored.
func newHookRig(t *testing.T) (*rig, *hookQueue) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	all := []prefetched.RegisteredEntity{{Entity: entity("a"), Enabled: true}, {Entity: entity("b"), Enabled: true}}
	if _, err := db.RegisterEntities(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	h, err := webhooks.NewHook("nexon", "changes", webhooks.Config{
		Verify: webhooks.Verify{Scheme: webhooks.GitHub},
		Map:    []webhooks.Rule{{Facet: "character", Key: "body:keys", When: webhooks.Condition{Body: "type", Equals: []string{"changed"}}}},
	}, hookKeys{}, hookSecret)
	if err != nil {
		t.Fatal(err)
	}
	q := &hookQueue{}
	receiver := webhooks.New([]*webhooks.Hook{h}, webhooks.Deps{
		Store: db, Enqueuer: q, Walks: noWalks{}, Wake: func(context.Context, string, time.Time) {}, Now: time.Now, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	return newRig(t, func(r *rig) { r.hooks = receiver }), q
}

// noWalks implements webhooks.Walks for a source without collections.
type noWalks struct{}

func (noWalks) WalkAgain(context.Context, []schemas.Entity) error { return nil }

// deliver sends a signed delivery, and checks the response against the OpenAPI document.
func (r *rig) deliver(path, body string, change ...func(*http.Request)) answer {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), http.MethodPost, path, strings.NewReader(body))
	m := hmac.New(sha256.New, []byte(hookSecret))
	m.Write([]byte(body))
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(m.Sum(nil)))
	req.Header.Set("Content-Type", "application/json")
	for _, f := range change {
		f(req)
	}
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	a := answer{Response: rec.Result(), text: rec.Body.String()}
	if strings.Contains(a.Header.Get("Content-Type"), "problem") {
		if err := json.Unmarshal(rec.Body.Bytes(), &a.body); err != nil {
			r.Fatal(err)
		}
	}
	openapitest.Check(r, openapitest.Exchange{Request: req, Body: body, Status: a.StatusCode, Header: a.Header, Response: a.text})
	return a
}

func TestHooks_RespondAsTheContractSays(t *testing.T) {
	r, q := newHookRig(t)
	r.refused = http.ErrNoCookie // this query service can't authenticate clients, but a delivery needs only its signature
	const good = `{"type":"changed","keys":["a","b","unknown"]}`
	a := r.deliver("/hooks/nexon/changes", good, func(req *http.Request) { req.Header.Set("X-Correlation-Id", "mine") })
	if want := `{"requested":2,"delayed":0,"held":0,"unknownKeys":1,"badKeys":0}`; a.StatusCode != http.StatusAccepted || strings.TrimSpace(a.text) != want || a.Header.Get("X-Correlation-Id") != "mine" {
		t.Errorf("delivery: got %d %s, want 202 %s", a.StatusCode, a.text, want)
	}
	if len(q.requests) != 2 || q.requests[0].CorrelationID != "mine" {
		t.Errorf("requests: got %+v, want two with the correlation id", q.requests)
	}
	forged := func(req *http.Request) { req.Header.Set("X-Hub-Signature-256", "sha256=00") }
	for name, d := range map[string]struct {
		path, body   string
		change       func(*http.Request)
		status       int
		result, code string
	}{
		"unknown event":  {"/hooks/nexon/changes", `{"type":"other"}`, nil, 204, "unknown-event", ""},
		"unknown key":    {"/hooks/nexon/changes", `{"type":"changed","keys":["c"]}`, nil, 204, "unknown-key", ""},
		"forged":         {"/hooks/nexon/changes", good, forged, 401, "bad-signature", "bad-signature"},
		"not JSON":       {"/hooks/nexon/changes", "x=y", nil, 400, "bad-body", "bad-body"},
		"unknown name":   {"/hooks/nexon/other", good, nil, 404, "", "no-such-path"},
		"unknown source": {"/hooks/other/changes", good, nil, 404, "", "no-such-path"},
		"bad escape":     {"/hooks/nexon/%25zz", good, nil, 404, "", "no-such-path"},
	} {
		change := func(*http.Request) {}
		if d.change != nil {
			change = d.change
		}
		a := r.deliver(d.path, d.body, change)
		if a.StatusCode != d.status || a.Header.Get("Freshet-Hook-Result") != d.result || a.body.Code != d.code {
			t.Errorf("%s: got %d %q %q, want %d %q %q", name, a.StatusCode, a.Header.Get("Freshet-Hook-Result"), a.body.Code, d.status, d.result, d.code)
		}
	}
	if a := r.do(http.MethodGet, "/hooks/nexon/changes"); a.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: got %d, want 405", a.StatusCode)
	}
	if len(q.requests) != 2 {
		t.Errorf("requests after rejected deliveries: got %d, want 2", len(q.requests))
	}
}

// Deliveries with a forged signature count toward the limit of requests of their IP address. So they
// can't overload the service.
func TestHooks_CountTowardTheLimitOfTheAddress(t *testing.T) {
	r, _ := newHookRig(t)
	r.exceeded["requests"] = true
	a := r.deliver("/hooks/nexon/changes", `{"type":"changed","keys":["a"]}`)
	if a.StatusCode != http.StatusTooManyRequests || a.body.Code != "too-many-requests" {
		t.Errorf("delivery above the limit: got %d %s, want 429", a.StatusCode, a.body.Code)
	}
	if want := "requests unauthenticated@192.0.2.1 1"; len(r.limiterCalls) != 1 || r.limiterCalls[0] != want {
		t.Errorf("calls of the limiter: got %q, want %q", r.limiterCalls, want)
	}
}

func TestHooks_HaveNoPathWithoutConfiguration(t *testing.T) {
	r := newRig(t)
	if a := r.deliver("/hooks/nexon/changes", "{}"); a.StatusCode != http.StatusNotFound {
		t.Errorf("delivery: got %d, want 404", a.StatusCode)
	}
}
