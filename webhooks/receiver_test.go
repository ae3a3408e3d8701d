package webhooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const repository = "Codertocat/Hello-World" // name of the repository in GitHub's recorded deliveries

func recorded(t testing.TB, name string) string {
	t.Helper()
	body, err := os.ReadFile("testdata/webhook." + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestReceive_RequestsRepositoryOfRecordedPayload(t *testing.T) {
	r := newRig(t)
	r.stored["issues/"+repository] = 42
	a := r.deliver("issues", recorded(t, "issues.edited"))
	r.want(a, http.StatusAccepted, accepted)
	if a.body != (response{Requested: 1}) {
		t.Errorf("body: got %+v, want one request", a.body)
	}
	want := Request{Entity: schemas.Entity{Source: "github", Facet: "issues", Key: repository}, Lane: schemas.Low, Floor: 42, CorrelationID: "correlation"}
	if got := r.requests[0]; got != want {
		t.Errorf("request: got %+v, want %+v", got, want)
	}
}

func TestReceive_IgnoresUnknownEvents(t *testing.T) {
	r := newRig(t)
	r.stored["issues/"+repository] = 42
	for _, event := range []string{"push", "pull_request", "ping", "", "ISSUES"} {
		r.want(r.deliver(event, recorded(t, "push")), http.StatusNoContent, unknownEvent)
	}
	r.wantRequests()
	if r.storeReads != 0 || r.count(unknownEvent) != 5 {
		t.Errorf("reads of the database and counted deliveries: got %d, %v, want 0, 5", r.storeReads, r.count(unknownEvent))
	}
}

// A delivery without a valid signature is counted and has no other effect. The response must not say
// which part is wrong.
func TestReceive_RefusesForgedDeliveries(t *testing.T) {
	r := newRig(t)
	r.stored["issues/"+repository] = 42
	body := recorded(t, "issues.edited")
	good := sign("issues", body).Header.Get("X-Hub-Signature-256")
	other := hmac.New(sha256.New, []byte("another-secret-of-16"))
	other.Write([]byte(body))
	for name, change := range map[string]func(*http.Request){
		"no signature":    func(q *http.Request) { q.Header.Del("X-Hub-Signature-256") },
		"empty signature": func(q *http.Request) { q.Header.Set("X-Hub-Signature-256", "sha256=") },
		"sha1 signature":  func(q *http.Request) { q.Header.Set("X-Hub-Signature-256", strings.Replace(good, "sha256", "sha1", 1)) },
		"cut signature":   func(q *http.Request) { q.Header.Set("X-Hub-Signature-256", good[:len(good)-2]) },
		"other secret": func(q *http.Request) {
			q.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(other.Sum(nil)))
		},
		"altered body": func(q *http.Request) { *q = *sign("issues", body+" "); q.Header.Set("X-Hub-Signature-256", good) },
		"signature of empty": func(q *http.Request) {
			*q = *sign("issues", "")
			q.Body = http.NoBody
			q.Header.Set("X-Hub-Signature-256", good)
		},
		"two signatures": func(q *http.Request) { q.Header.Add("X-Hub-Signature-256", good) },
	} {
		q := sign("issues", body)
		change(q)
		a := r.send(q)
		if r.want(a, http.StatusUnauthorized, badSignature); a.code != problem.BadSignature || strings.Contains(a.detail, repository) {
			t.Errorf("%s: got %s %q, want %s without a key", name, a.code, a.detail, problem.BadSignature)
		}
	}
	r.wantRequests()
	if r.storeReads != 0 || testutil.ToFloat64(r.receiver.metrics.last.WithLabelValues("github", "hook")) != 0 {
		t.Errorf("reads of the database and time of the last delivery: got %d, %v, want none", r.storeReads, testutil.ToFloat64(r.receiver.metrics.last.WithLabelValues("github", "hook")))
	}
}

func TestReceive_RefusesOldDeliveries(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Verify.Scheme = Stripe })
	body := `{"type":"batch"}`
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(fmt.Sprint(r.now.Unix()) + "." + body))
	q := httptest.NewRequest(http.MethodPost, "/hooks/github/hook", strings.NewReader(body))
	q.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%x", r.now.Unix(), m.Sum(nil)))
	r.pass(maxAge + time.Second)
	r.want(r.send(q), http.StatusUnauthorized, expired)
	r.wantRequests()
}

// endless is a body without an end.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func TestReceive_LimitsBodies(t *testing.T) {
	r := newRig(t)
	large := strings.Repeat("x", 30<<20)
	q := sign("issues", large)
	a := r.send(q)
	if r.want(a, http.StatusRequestEntityTooLarge, tooLarge); a.code != problem.BodyTooLarge {
		t.Errorf("announced body of 30 MiB: got %s, want %s", a.code, problem.BodyTooLarge)
	}
	q = sign("issues", "{}")
	body := &endless{}
	q.Body, q.ContentLength = http.NoBody, -1
	q = httptest.NewRequest(http.MethodPost, "/hooks/github/hook", body)
	q.ContentLength = -1
	q.Header = sign("issues", "{}").Header
	r.want(r.send(q), http.StatusRequestEntityTooLarge, tooLarge)
	if body.read > 2*maxBody {
		t.Errorf("bytes read of an endless body: got %d, want at most %d", body.read, 2*maxBody)
	}
	if !r.receiver.memory.TryAcquire(maxBodyMemory) {
		t.Error("memory for bodies after two refused deliveries: got a part, want all of it")
	}
	r.want(r.deliver("issues", `{}`), http.StatusServiceUnavailable, unavailable) // the bodies of other deliveries use all memory
}

func TestReceive_RefusesUnreadableBodies(t *testing.T) {
	r := newRig(t)
	for name, body := range map[string]string{
		"empty":        "",
		"form":         "payload=%7B%7D",
		"cut":          `{"repository":{"full_name":"a/b"`,
		"two values":   `{} {}`,
		"deep arrays":  strings.Repeat("[", 1<<20),
		"deep objects": strings.Repeat(`{"a":`, 1<<20) + "1" + strings.Repeat("}", 1<<20),
		"valid, deep":  strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
		"NUL":          "{\"a\":\x00}",
	} {
		a := r.deliver("issues", body)
		if r.want(a, http.StatusBadRequest, badBody); a.code != problem.BadBody {
			t.Errorf("%s: got %s %q, want %s", name, a.code, a.detail, problem.BadBody)
		}
	}
	r.wantRequests()
	brackets := `{"repository":{"full_name":"a/b","text":"` + strings.Repeat("[", 1000) + `\""}}`
	r.want(r.deliver("issues", brackets), http.StatusNoContent, unknownKey) // brackets in a string do not count as nesting
}

func TestReceive_FindsSeveralKeys(t *testing.T) {
	r := newRig(t)
	for _, key := range []string{"a", "b", "9007199254740993", "12345678901234567890", "é"} {
		r.stored["items/"+key] = 1
	}
	a := r.deliver("", `{"type":"batch","events":[{"id":"a"},{"id":"b"},{"id":"a"},{"id":"fold:b"},{"id":9007199254740993},{"id":12345678901234567890},{"id":null},
		{"id":{}},{"id":true},{"id":""},{},{"id":"has space"},{"id":"../x"},{"id":"\u00e9"},{"id":"not-stored"},{"id":"\u0000"}]}`)
	r.want(a, http.StatusAccepted, accepted)
	if want := (response{Requested: 5, UnknownKeys: 1, BadKeys: 3}); a.body != want {
		t.Errorf("body: got %+v, want %+v", a.body, want)
	}
	r.wantRequests("items/a", "items/b", "items/9007199254740993", "items/12345678901234567890", "items/é")
	r.want(r.deliver("", `{"type":"batch","events":[]}`), http.StatusNoContent, noKey)
	r.want(r.deliver("", `{"type":"batch","events":[{"id":"has space"}]}`), http.StatusNoContent, noKey)
	r.want(r.deliver("", `{"type":"batch"}`), http.StatusNoContent, noKey)
	many := `{"type":"batch","events":[` + strings.TrimSuffix(strings.Repeat(`{"id":"x"},`, maxKeys+1), ",") + `]}`
	r.want(r.deliver("", many), http.StatusRequestEntityTooLarge, tooLarge)
	r.wantRequests()
}

func TestReceive_RefreshesOnlyKnownKeys(t *testing.T) {
	r := newRig(t)
	body := func(key string) string { return `{"repository":{"full_name":"` + key + `"}}` }
	r.stored["issues/stored"], r.registered["issues/registered"] = 5, true
	r.want(r.deliver("issues", body("stored")), http.StatusAccepted, accepted)
	r.want(r.deliver("issues", body("registered")), http.StatusAccepted, accepted)
	r.want(r.deliver("issues", body("unknown")), http.StatusNoContent, unknownKey)
	r.wantRequests("issues/stored", "issues/registered")
}

func TestReceive_LimitsNewKeys(t *testing.T) {
	r := newRig(t, func(c *Config) { c.NewKeys = "3/m" })
	r.stored["items/known"] = 1
	batch := func(keys ...string) string {
		return `{"type":"batch","events":[{"id":"` + strings.Join(keys, `"},{"id":"`) + `"}]}`
	}
	r.want(r.deliver("", batch("a", "b")), http.StatusAccepted, accepted)
	a := r.deliver("", batch("c", "known", "d"))
	r.want(a, http.StatusTooManyRequests, limited)
	if a.code != problem.TooManyNewKeys || a.after != 20*time.Second {
		t.Errorf("problem: got %s after %v, want %s after 20s", a.code, a.after, problem.TooManyNewKeys)
	}
	r.wantRequests("items/a", "items/b", "items/c", "items/known") // only the allowed number of new keys is refreshed
	r.pass(-time.Hour)                                             // the next delivery has an earlier time than the ones before
	r.want(r.deliver("", batch("d")), http.StatusTooManyRequests, limited)
	r.pass(time.Hour + 20*time.Second)
	r.want(r.deliver("", batch("d")), http.StatusAccepted, accepted)
	r.want(r.deliver("", batch("e")), http.StatusTooManyRequests, limited)
	r.pass(time.Hour)
	r.want(r.deliver("", batch("f", "g", "h")), http.StatusAccepted, accepted)
	r.want(r.deliver("", batch("i")), http.StatusTooManyRequests, limited) // minutes without new keys do not raise the limit
}

// If Kafka has not acknowledged every request, the response must be 503, so that the upstream repeats
// the delivery.
func TestReceive_RespondsUnavailableUnlessDurable(t *testing.T) {
	r := newRig(t)
	r.stored["items/a"], r.stored["items/b"] = 1, 1
	const body = `{"type":"batch","events":[{"id":"a"},{"id":"b"}]}`
	r.outcome = func(q Request) Result {
		if q.Entity.Key == "b" {
			return Result{}
		}
		return Result{Queued, 7}
	}
	a := r.deliver("", body)
	if r.want(a, http.StatusServiceUnavailable, unavailable); a.code != problem.NotQueued || a.after <= 0 {
		t.Errorf("one of two requests failed: got %s after %v, want %s with a delay", a.code, a.after, problem.NotQueued)
	}
	r.wantRequests("items/a", "items/b")
	r.storeErr = errors.New("connection to host-of-the-database refused")
	a = r.deliver("", body)
	if r.want(a, http.StatusServiceUnavailable, unavailable); strings.Contains(a.detail, "host-of-the-database") {
		t.Errorf("detail while the database is down: got %q, want it without the error", a.detail)
	}
	r.wantRequests() // while the database is unavailable, nothing is requested
	for range maxWaiting {
		r.receiver.waiting <- struct{}{}
	}
	r.storeErr = nil
	r.want(r.deliver("", body), http.StatusServiceUnavailable, unavailable)
}

func TestReceive_ReportsHeldEntities(t *testing.T) {
	r := newRig(t)
	r.stored["items/a"], r.stored["items/b"] = 1, 1
	r.outcome = func(Request) Result { return Result{Outcome: Held} }
	r.want(r.deliver("", `{"type":"batch","events":[{"id":"a"}]}`), http.StatusNoContent, held)
	r.outcome = func(q Request) Result {
		if q.Entity.Key == "a" {
			return Result{Outcome: Held}
		}
		return Result{Queued, 7}
	}
	a := r.deliver("", `{"type":"batch","events":[{"id":"a"},{"id":"b"}]}`)
	if r.want(a, http.StatusAccepted, accepted); a.body != (response{Requested: 1, Held: 1}) {
		t.Errorf("body: got %+v, want one request and one hold", a.body)
	}
}

func TestReceive_StoresDelayedRequests(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Map[1].Delay, c.Map[1].Lane = 5*time.Second, schemas.High })
	r.stored["items/a"] = 1
	a := r.deliver("", `{"type":"batch","events":[{"id":"a"}]}`)
	if r.want(a, http.StatusAccepted, accepted); a.body != (response{Delayed: 1}) {
		t.Errorf("body: got %+v, want one delayed request", a.body)
	}
	r.wantRequests()
	want := store.Trigger{Facet: "items", Quiet: 5 * time.Second, MaxDelay: 50 * time.Second, Lane: schemas.High}
	if w := r.delayed[0]; nameOf(w.Entity) != "items/a" || !w.CheckedAt.Equal(r.now) || !reflect.DeepEqual(w.Outbox.Triggers, []store.Trigger{want}) {
		t.Errorf("delayed request: got %+v, want one of items/a with %+v", w, want)
	}
	if len(r.woken) != 1 || !r.woken[0].Equal(r.now.Add(5*time.Second)) {
		t.Errorf("relays woken: got %v, want once in 5 s", r.woken)
	}
	r.storeErr = errors.New("down")
	r.want(r.deliver("", `{"type":"batch","events":[{"id":"a"}]}`), http.StatusServiceUnavailable, unavailable)
}

// An open walk of a collection can miss the change that a delivery announces. So another walk must follow.
func TestReceive_LetsAnotherWalkFollow(t *testing.T) {
	for _, delay := range []time.Duration{0, 5 * time.Second} {
		r := newRig(t, func(c *Config) { c.Map[0].Delay = delay })
		r.stored["issues/"+repository] = 42
		r.want(r.send(sign("issues", recorded(t, "issues.edited"))), http.StatusAccepted, accepted)
		if want := []schemas.Entity{{Source: "github", Facet: "issues", Key: repository}}; !slices.Equal(r.walks, want) {
			t.Errorf("delay %v: walks to follow: got %v, want %v", delay, r.walks, want)
		}
	}
}

func TestReceive_UnknownHook(t *testing.T) {
	r := newRig(t)
	for _, path := range [][2]string{{"github", "other"}, {"other", "hook"}, {"", ""}, {"github", "hook\x00"}} {
		err := r.receiver.Receive(httptest.NewRecorder(), sign("issues", "{}"), path[0], path[1], "")
		if p, ok := errors.AsType[*problem.HTTPError](err); !ok || p.Status != http.StatusNotFound || p.Code != problem.NoSuchPath {
			t.Errorf("%q: got %v, want %s", path, err, problem.NoSuchPath)
		}
	}
	if n := testutil.CollectAndCount(r.receiver.metrics.deliveries); n != 1 { // deliveries for unknown webhooks must not create new time series
		t.Errorf("series of deliveries: got %d, want 1", n)
	}
}

func TestReceive_ReplacesSecrets(t *testing.T) {
	r := newRig(t)
	if err := r.hook.SetSecrets("short"); err == nil || strings.Contains(err.Error(), `"short"`) {
		t.Errorf("error of a short secret: got %v, want one without the secret", err)
	}
	r.want(r.deliver("push", "{}"), http.StatusNoContent, unknownEvent) // the new text is invalid, so the old secret stays in use
	if err := r.hook.SetSecrets("the-next-secret-16"); err != nil {
		t.Fatal(err)
	}
	r.want(r.deliver("push", "{}"), http.StatusUnauthorized, badSignature)
}
