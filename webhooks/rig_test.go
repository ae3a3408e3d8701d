package webhooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const secret = "a-secret-of-sixteen"

// rig is a receiver with the webhook "hook" of the source "github". It also implements all dependencies
// of the receiver.
type rig struct {
	testing.TB
	receiver *Receiver
	hook     *Hook
	reg      *prometheus.Registry

	mu         sync.Mutex
	now        time.Time
	stored     map[string]int64 // versions of the stored snapshots, by facet/key
	registered map[string]bool
	storeErr   error
	storeReads int
	outcome    func(Request) Result // returns the result of a request; nil means Queued with the number 100
	requests   []Request
	delayed    []store.Write
	walks      []schemas.Entity
	woken      []time.Time
}

func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{TB: t, now: time.Unix(1_700_000_000, 0).UTC(), stored: map[string]int64{}, registered: map[string]bool{}, reg: prometheus.NewRegistry()}
	c := Config{
		Verify: Verify{Scheme: GitHub, SecretFile: "unused"},
		Map: []Rule{
			{When: Condition{Header: "X-GitHub-Event", Equals: []string{"issues", "issue_comment"}}, Facet: "issues", Key: "body:repository.full_name"},
			{When: Condition{Body: "type", Equals: []string{"batch"}}, Facet: "items", Key: "body:events.#.id"},
		},
	}
	for _, f := range change {
		f(&c)
	}
	if err := c.Check(func(string) ([]string, bool) { return nil, true }); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.hook, err = NewHook("github", "hook", c, r, secret); err != nil {
		t.Fatal(err)
	}
	r.receiver = New([]*Hook{r.hook}, Deps{
		Store: r, Walks: r, Enqueuer: r, Now: r.clock, Log: slog.New(slog.DiscardHandler), Metrics: r.reg,
		Wake: func(_ context.Context, _ string, at time.Time) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.woken = append(r.woken, at)
		},
	})
	return r
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

func (r *rig) CheckKey(_, key string) error {
	if strings.Contains(key, " ") {
		return errors.New("a key has no spaces")
	}
	return nil
}

func (r *rig) Fold(_, key string) string { return strings.TrimPrefix(key, "fold:") }

func nameOf(e schemas.Entity) string { return e.Facet + "/" + e.Key }

func (r *rig) States(_ context.Context, of []schemas.Entity) ([]store.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.storeReads++
	all := make([]store.State, len(of))
	for i, e := range of {
		all[i] = store.State{Entity: e, Version: r.stored[nameOf(e)]}
	}
	return all, r.storeErr
}

func (r *rig) EntityParams(_ context.Context, of []schemas.Entity) ([]map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.storeReads++
	all := make([]map[string]string, len(of))
	for i, e := range of {
		if r.registered[nameOf(e)] {
			all[i] = map[string]string{}
		}
	}
	return all, r.storeErr
}

func (r *rig) WriteOutbox(_ context.Context, all []store.Write) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.storeErr == nil {
		r.delayed = append(r.delayed, all...)
	}
	return r.storeErr
}

func (r *rig) WalkAgain(_ context.Context, of []schemas.Entity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.walks = append(r.walks, of...)
	return r.storeErr
}

func (r *rig) EnqueueAndWait(_ context.Context, all []Request) []Result {
	r.mu.Lock()
	r.requests = append(r.requests, all...)
	outcome := r.outcome
	r.mu.Unlock()
	results := make([]Result, len(all))
	for i, req := range all {
		if results[i] = (Result{Queued, 100}); outcome != nil {
			results[i] = outcome(req)
		}
	}
	return results
}

// answer has the parts of the response to one delivery that tests compare.
type answer struct {
	status int
	result string // value of the header resultHeader
	body   response
	code   problem.Code
	detail string
	after  time.Duration
	text   string
}

// sign returns a delivery with a valid signature.
func sign(event, body string) *http.Request {
	req := httptest.NewRequest(http.MethodPost, "/hooks/github/hook", strings.NewReader(body))
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(body))
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(m.Sum(nil)))
	req.Header.Set("X-GitHub-Event", event)
	return req
}

// deliver sends a delivery with a valid signature to the receiver, and returns the answer.
func (r *rig) deliver(event, body string) answer {
	r.Helper()
	return r.send(sign(event, body))
}

func (r *rig) send(req *http.Request) answer {
	r.Helper()
	w := httptest.NewRecorder()
	err := r.receiver.Receive(w, req, "github", "hook", "correlation")
	a := answer{status: w.Code, result: w.Header().Get(resultHeader), text: w.Body.String()}
	if err != nil {
		p, ok := errors.AsType[*problem.HTTPError](err)
		if !ok {
			r.Fatalf("error of a delivery: got %v, want a problem", err)
		}
		a.status, a.code, a.detail, a.after = p.Status, p.Code, p.Detail, p.After
	} else if w.Body.Len() > 0 {
		if err := json.NewDecoder(io.Reader(w.Body)).Decode(&a.body); err != nil {
			r.Fatal(err)
		}
	}
	return a
}

// want fails the test unless the answer to a delivery has this status and result.
func (r *rig) want(a answer, status int, re result) {
	r.Helper()
	if a.status != status || a.result != string(re) {
		r.Errorf("delivery: got %d %s (%s), want %d %s", a.status, a.result, a.detail, status, re)
	}
}

// wantRequests fails the test unless exactly these entities were requested since its last call, in any
// order. An entity is written as facet/key.
func (r *rig) wantRequests(want ...string) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, req := range r.requests {
		got = append(got, nameOf(req.Entity))
	}
	r.requests = nil
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.Errorf("requests: got %q, want %q", got, want)
	}
}

func (r *rig) count(re result) float64 {
	return testutil.ToFloat64(r.receiver.metrics.deliveries.WithLabelValues("github", "hook", string(re)))
}
