package query

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// rig is the service with everything behind it under the test's hand.
type rig struct {
	*testing.T
	server    *Server
	snapshots map[schemas.Entity]store.Snapshot
	storeErr  error
	wishes    []Wish
	answer    func(ctx context.Context, w Wish) Answer
	wait      time.Duration
	router    routers.Router
}

func (r *rig) Get(_ context.Context, e schemas.Entity) (store.Snapshot, error) {
	if s, ok := r.snapshots[e]; ok && r.storeErr == nil {
		return s, nil
	}
	if r.storeErr != nil {
		return store.Snapshot{}, r.storeErr
	}
	return store.Snapshot{}, store.ErrNotFound
}

func (r *rig) Request(ctx context.Context, w Wish) Answer {
	r.wishes = append(r.wishes, w)
	if r.answer != nil {
		return r.answer(ctx, w)
	}
	return Answer{Queued: true}
}

func (r *rig) Wait(string, schemas.Lane) (time.Duration, bool) { return r.wait, r.wait > 0 }

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, snapshots: map[schemas.Entity]store.Snapshot{}}
	config := source.DefaultConfig()
	config.BaseURL = "http://upstream.example"
	f := source.DefaultFacet()
	f.KeyPattern = "[^x]+"
	f.KeepFor = 100 * time.Hour
	f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
	config.Facets = map[string]source.Facet{"character": f}
	src, err := source.New("nexon", config, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	ops := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok")
	})
	r.server = New(r, map[string]Source{"nexon": src}, r, r, ops, http.HandlerFunc(echoed), slog.New(slog.DiscardHandler), prometheus.NewRegistry())

	doc, err := openapi3.NewLoader().LoadFromData(schemas.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil
	if r.router, err = gorillamux.NewRouter(doc); err != nil {
		t.Fatal(err)
	}
	return r
}

func entity(key string) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: "character", Key: key}
}

const content = `{"d":{"name":"유"}}`

// stored puts a snapshot that was checked so long ago.
func (r *rig) stored(key string, age time.Duration, change ...func(*store.Snapshot)) store.Snapshot {
	p := store.Encode([]byte(content))
	at := time.Now().Add(-age).UTC().Truncate(time.Microsecond)
	s := store.Snapshot{State: store.State{
		Entity: entity(key), Version: 7, Hash: sha256.Sum256([]byte(content)), Encoding: p.Encoding, Size: p.Size,
		FetchedAt: at, CheckedAt: at, UpdatedAt: at.Add(-time.Hour),
	}, Payload: p.Bytes}
	for _, c := range change {
		c(&s)
	}
	r.snapshots[s.Entity] = s
	return s
}

type answer struct {
	*http.Response
	text string
	body struct {
		Snapshot        json.RawMessage `json:"snapshot"`
		Freshness       Freshness       `json:"freshness"`
		LastUpdatedAt   *time.Time      `json:"lastUpdatedAt"`
		LastCheckedAt   *time.Time      `json:"lastCheckedAt"`
		UpdateQueued    bool            `json:"updateQueued"`
		EstimatedWaitMs *int64          `json:"estimatedWaitMs"`
		NotQueuedReason *string         `json:"notQueuedReason"`
		NotQueuedUntil  *time.Time      `json:"notQueuedUntil"`
		Code            string          `json:"code"`
		Status          int             `json:"status"`
	}
}

// do sends a request and checks the answer against the OpenAPI document.
func (r *rig) do(method, target string, headers ...string) answer {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	a := answer{Response: rec.Result(), text: rec.Body.String()}
	if strings.Contains(a.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(rec.Body.Bytes(), &a.body); err != nil {
			r.Fatalf("%s %s: %s: %v", method, target, a.text, err)
		}
	}
	if route, params, err := r.router.FindRoute(req); err == nil && target != "/openapi.yaml" {
		err := openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
			Status:                 a.StatusCode, Header: a.Header,
			Body:    io.NopCloser(bytes.NewReader(rec.Body.Bytes())),
			Options: &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		})
		if err != nil {
			r.Errorf("%s %s does not fit the OpenAPI document: %v\n%s", method, target, err, a.text)
		}
	}
	return a
}

func (r *rig) get(key string, headers ...string) answer {
	r.Helper()
	return r.do(http.MethodGet, "/v1/nexon/character/"+key, headers...)
}

func TestAFreshSnapshotIsServedAndNothingAskedFor(t *testing.T) {
	r := newRig(t)
	s := r.stored("a", 10*time.Minute)
	a := r.get("a")
	if a.StatusCode != 200 || a.body.Freshness != Fresh || string(a.body.Snapshot) != content || a.body.UpdateQueued || a.body.NotQueuedReason != nil {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	if !a.body.LastCheckedAt.Equal(s.CheckedAt) || !a.body.LastUpdatedAt.Equal(s.UpdatedAt) {
		t.Errorf("times %v, %v", a.body.LastCheckedAt, a.body.LastUpdatedAt)
	}
	for name, want := range map[string]string{
		"Age": "600", "Cache-Control": "private, max-age=2999, stale-while-revalidate=3600", "Cache-Status": "freshet; hit; ttl=2999",
		"Content-Type": "application/json", "Last-Modified": s.UpdatedAt.Format(http.TimeFormat),
	} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if len(r.wishes) != 0 {
		t.Errorf("wishes %+v", r.wishes)
	}
}

func TestAStaleSnapshotIsServedAndARefreshQueued(t *testing.T) {
	r := newRig(t)
	r.stored("a", 2*time.Hour)
	r.wait = 1500 * time.Millisecond
	a := r.get("a", "X-Correlation-Id", "corr-1", "traceparent", "00-t")
	if a.StatusCode != 200 || a.body.Freshness != Stale || string(a.body.Snapshot) != content || !a.body.UpdateQueued || *a.body.EstimatedWaitMs != 1500 {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	if got := a.Header.Get("Cache-Control"); !strings.HasPrefix(got, "private, max-age=0,") {
		t.Errorf("Cache-Control: %s", got)
	}
	want := Wish{Entity: entity("a"), Reason: schemas.Stale, Floor: 7, CorrelationID: "corr-1", TraceParent: "00-t"}
	if len(r.wishes) != 1 || r.wishes[0] != want {
		t.Errorf("wishes %+v", r.wishes)
	}
	if a.Header.Get("X-Correlation-Id") != "corr-1" {
		t.Errorf("correlation id %q", a.Header.Get("X-Correlation-Id"))
	}
}

func TestTheFirstReadIsUpdatingAndToldWhenToComeBack(t *testing.T) {
	r := newRig(t)
	a := r.get("a")
	if a.StatusCode != 202 || a.body.Freshness != Updating || string(a.body.Snapshot) != "null" || !a.body.UpdateQueued ||
		a.Header.Get("Retry-After") != "1" || a.body.LastCheckedAt != nil || a.body.EstimatedWaitMs != nil {
		t.Errorf("%d %s %v", a.StatusCode, a.text, a.Header)
	}
	r.wait = 4200 * time.Millisecond
	if a := r.get("a"); a.Header.Get("Retry-After") != "5" || *a.body.EstimatedWaitMs != 4200 {
		t.Errorf("%s, Retry-After %s", a.text, a.Header.Get("Retry-After"))
	}
	if r.wishes[0].Reason != schemas.CacheMiss || r.wishes[0].Floor != 0 || len(r.wishes[0].CorrelationID) != 36 {
		t.Errorf("wish %+v", r.wishes[0])
	}
}

func TestWhatIsPendingIsNotPromised(t *testing.T) {
	r := newRig(t)
	r.answer = func(context.Context, Wish) Answer { return Answer{Pending: true} }
	a := r.get("a")
	if a.StatusCode != 202 || a.body.UpdateQueued || *a.body.NotQueuedReason != "PENDING" {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
}

func TestAnAbsenceIsNotFoundAndBelievedForAWhile(t *testing.T) {
	r := newRig(t)
	absent := func(s *store.Snapshot) { s.Absent = true }
	r.stored("a", 10*time.Minute, absent)
	a := r.get("a")
	if a.StatusCode != 404 || a.body.Freshness != NotFound || a.body.Code != "not-found" || len(r.wishes) != 0 ||
		a.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %s, %d wishes", a.StatusCode, a.text, len(r.wishes))
	}
	r.stored("a", 2*time.Hour, absent)
	if a := r.get("a"); a.StatusCode != 404 || !a.body.UpdateQueued || len(r.wishes) != 1 {
		t.Errorf("%d %s, %d wishes", a.StatusCode, a.text, len(r.wishes))
	}
}

func TestASnapshotThatMayNotBeKeptIsNotServed(t *testing.T) {
	r := newRig(t)
	r.stored("a", time.Minute, func(s *store.Snapshot) { s.FetchedAt = time.Now().Add(-101 * time.Hour) })
	if a := r.get("a"); a.StatusCode != 202 || strings.Contains(a.text, "유") {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
}

func TestAReaderThatHasTheSnapshotGetsNoBody(t *testing.T) {
	r := newRig(t)
	r.stored("a", time.Minute)
	etag := r.get("a").Header.Get("ETag")
	if !strings.HasPrefix(etag, `W/"`) {
		t.Fatalf("tag %s", etag)
	}
	for header, want := range map[string]int{
		etag: 304, strings.TrimPrefix(etag, "W/"): 304, "*": 304, `"x", ` + etag + `, "y"`: 304, `W/"x",` + etag: 304,
		`"x"`: 200, `"x`: 200, "x": 200, "": 200, etag[:len(etag)-2] + `"`: 200, "W/": 200, `"x" ` + etag: 304,
	} {
		a := r.get("a", "If-None-Match", header)
		if a.StatusCode != want || (want == 304) != (a.text == "") {
			t.Errorf("If-None-Match: %s gave %d", header, a.StatusCode)
		}
	}
	r.stored("a", 2*time.Hour) // stale: the reader has it all the same, and a refresh is queued
	if a := r.get("a", "If-None-Match", etag); a.StatusCode != 304 || len(r.wishes) != 1 {
		t.Errorf("stale: %d, %d wishes", a.StatusCode, len(r.wishes))
	}
	if a := r.do(http.MethodHead, "/v1/nexon/character/a"); a.StatusCode != 200 || a.Header.Get("ETag") != etag {
		t.Errorf("HEAD: %d", a.StatusCode)
	}
}

func TestAReadGoesOnWithoutRedisOrKafkaAndSaysSo(t *testing.T) {
	r := newRig(t)
	r.stored("a", 2*time.Hour)
	until := time.Now().Add(time.Hour)
	for reason, until := range map[string]time.Time{ReasonDown: {}, ReasonBusy: {}, "HELD_FAILED": until} {
		r.answer = func(context.Context, Wish) Answer { return Answer{Reason: reason, Until: until} }
		a := r.get("a")
		if a.StatusCode != 200 || a.body.Freshness != Stale || a.body.UpdateQueued || *a.body.NotQueuedReason != reason ||
			(a.body.NotQueuedUntil == nil) != until.IsZero() {
			t.Errorf("%s: %d %s", reason, a.StatusCode, a.text)
		}
		a = r.get("never-seen")
		if a.StatusCode != 503 || a.body.Freshness != Updating || *a.body.NotQueuedReason != reason || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", reason, a.StatusCode, a.text)
		}
	}
	r.answer = func(context.Context, Wish) Answer { return Answer{Reason: "HELD_ABSENT", Until: until} }
	if a := r.get("never-seen"); a.StatusCode != 404 || a.body.Freshness != NotFound {
		t.Errorf("held absent: %d %s", a.StatusCode, a.text)
	}
}

func TestARequestThatHangsCostsAReadLittleAndIsNotCutOff(t *testing.T) {
	r := newRig(t)
	r.stored("a", 2*time.Hour)
	release := make(chan struct{})
	ended := make(chan error, 1)
	r.answer = func(ctx context.Context, _ Wish) Answer {
		<-release
		ended <- ctx.Err()
		return Answer{Queued: true}
	}
	a := r.get("a") // returns although the request hangs
	if a.StatusCode != 200 || a.body.UpdateQueued || *a.body.NotQueuedReason != "SLOW" {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("the request ended with its reader: %v", err)
	}
}

func TestADatabaseThatCannotBeReadIsAProblemWithATime(t *testing.T) {
	r := newRig(t)
	r.storeErr = errors.New("connection refused to postgres://secret@db")
	a := r.get("a")
	if a.StatusCode != 503 || a.body.Code != "store-unavailable" || a.Header.Get("Retry-After") != "1" || strings.Contains(a.text, "secret") {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
}

func TestAKeyIsTakenApartOnceAndChecked(t *testing.T) {
	r := newRig(t)
	for path, c := range map[string]struct {
		status int
		key    string
	}{
		"a":                       {202, "a"},
		"%EA%B0%80":               {202, "가"},
		"a%2Fb":                   {202, "a/b"},
		"a%252Fb":                 {202, "a%2Fb"},
		"%3Fb":                    {202, "?b"},
		"a+b":                     {202, "a+b"},
		"%25":                     {202, "%"},
		"a%3Ab;c=d":               {202, "a:b;c=d"},
		"...":                     {202, "..."},
		"x":                       {400, ""},
		"%78":                     {400, ""},
		"..":                      {400, ""},
		"%2E%2E":                  {400, ""},
		"a%00b":                   {400, ""},
		"a%0Ab":                   {400, ""},
		"%FF":                     {400, ""},
		strings.Repeat("k", 257):  {400, ""},
		strings.Repeat("k", 9000): {400, ""},
		"":                        {404, ""},
		"a/b":                     {404, ""},
		"a/":                      {404, ""},
	} {
		r.wishes = nil
		a := r.get(path)
		if a.StatusCode != c.status || (c.status >= 400) != (a.Header.Get("Content-Type") == "application/problem+json") {
			t.Errorf("%.40q: %d %s", path, a.StatusCode, a.text)
		}
		if c.key != "" && (len(r.wishes) != 1 || r.wishes[0].Entity.Key != c.key) {
			t.Errorf("%q was taken for %+v", path, r.wishes)
		}
		if c.key == "" && len(r.wishes) != 0 {
			t.Errorf("%.40q made a wish: %+v", path, r.wishes)
		}
	}
}

func TestEveryErrorIsAProblem(t *testing.T) {
	r := newRig(t)
	r.answer = func(context.Context, Wish) Answer { panic("a bug") }
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/v1/github/character/a", 404, "no-such-source"},
		{"GET", "/v1/nexon/union/a", 404, "no-such-facet"},
		{"GET", "/nothing", 404, "no-such-path"},
		{"DELETE", "/v1/nexon/character/a", 405, "method-not-allowed"},
		{"GET", "/v1/nexon/character/a/refresh", 405, "method-not-allowed"},
		{"POST", "/v1/nexon/character/x/refresh", 400, "bad-key"},
	} {
		a := r.do(c.method, c.path)
		if a.StatusCode != c.status || a.body.Code != c.code || a.body.Status != c.status || a.Header.Get("Content-Type") != "application/problem+json" ||
			a.Header.Get("X-Correlation-Id") == "" {
			t.Errorf("%s %s: %d %s %v", c.method, c.path, a.StatusCode, a.text, a.Header)
		}
	}
}

func TestAPanicIsOneProblemAndNoEnd(t *testing.T) {
	r := newRig(t)
	e := entity("a")
	r.stored("a", time.Minute, func(s *store.Snapshot) { s.Size = -1 }) // makes the handler panic
	if a := r.get("a"); a.StatusCode != 500 || a.body.Code != "internal" || strings.Contains(a.text, "panic") {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	delete(r.snapshots, e)
	if a := r.get("a"); a.StatusCode != 202 {
		t.Errorf("afterwards: %d", a.StatusCode)
	}
}

func TestACorrelationIdIsKeptIfItCanBeWrittenDown(t *testing.T) {
	r := newRig(t)
	for id, kept := range map[string]bool{"abc-123": true, "": false, "a b": false, "a\tb": false, strings.Repeat("x", 129): false, "é": false} {
		if got := r.get("a", "X-Correlation-Id", id).Header.Get("X-Correlation-Id"); (got == id) != kept || got == "" {
			t.Errorf("%q became %q", id, got)
		}
	}
}

func (r *rig) refresh(key string) answer {
	r.Helper()
	return r.do(http.MethodPost, "/v1/nexon/character/"+key+"/refresh")
}

func TestAnExplicitRefreshIsQueuedOrToldWhyNot(t *testing.T) {
	r := newRig(t)
	r.stored("a", time.Minute)
	r.wait = time.Second
	a := r.refresh("a")
	if a.StatusCode != 202 || !a.body.UpdateQueued || *a.body.EstimatedWaitMs != 1000 {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	if w := r.wishes[0]; w.Reason != schemas.UserRequest || w.Floor != 7 || w.Cooldown != time.Minute {
		t.Errorf("wish %+v", w)
	}
	until := time.Now().Add(30 * time.Second)
	r.answer = func(context.Context, Wish) Answer { return Answer{Reason: ReasonCooldown, Until: until} }
	if a := r.refresh("a"); a.StatusCode != 429 || a.body.Code != "cooldown" || a.Header.Get("Retry-After") != "30" {
		t.Errorf("%d %s, Retry-After %s", a.StatusCode, a.text, a.Header.Get("Retry-After"))
	}
	r.answer = func(context.Context, Wish) Answer { return Answer{Reason: ReasonDown} }
	if a := r.refresh("a"); a.StatusCode != 503 || a.body.Code != "not-queued" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	r.storeErr, r.answer = errors.New("down"), nil // the floor is unknown, the wish is not lost
	if a := r.refresh("a"); a.StatusCode != 202 || r.wishes[len(r.wishes)-1].Floor != 0 {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
}

func TestAnExplicitRefreshIsAskedAgainUntilItIsCertain(t *testing.T) {
	r := newRig(t)
	r.answer = func(context.Context, Wish) Answer {
		if len(r.wishes) < 3 {
			return Answer{Pending: true}
		}
		return Answer{Queued: true}
	}
	if a := r.refresh("a"); a.StatusCode != 202 || len(r.wishes) != 3 {
		t.Errorf("%d %s after %d wishes", a.StatusCode, a.text, len(r.wishes))
	}
	r.answer = func(context.Context, Wish) Answer { return Answer{Pending: true} }
	if a := r.refresh("a"); a.StatusCode != 503 || !strings.Contains(a.text, "PENDING") {
		t.Errorf("never certain: %d %s", a.StatusCode, a.text)
	}
}

func TestTheContractAndTheOperationsAreServed(t *testing.T) {
	r := newRig(t)
	if a := r.do(http.MethodGet, "/openapi.yaml"); a.StatusCode != 200 || a.text != string(schemas.OpenAPI) {
		t.Errorf("/openapi.yaml: %d", a.StatusCode)
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if a := r.do(http.MethodGet, path); a.StatusCode != 200 || a.text != "ok" {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.text)
		}
	}
}

func FuzzNoPathMakesAWishForAnotherEntity(f *testing.F) {
	for _, p := range []string{"/v1/nexon/character/a", "/v1/nexon/character/..%2f..", "/v1/nexon/character/a/refresh", "/v1//character/a", "/v1/nexon/character/%", "//x/v1/nexon/character/a"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if req.URL, err = req.URL.Parse(path); err != nil || !strings.HasPrefix(req.URL.Path, "/") {
			return
		}
		r := newRig(t)
		rec := httptest.NewRecorder()
		r.server.ServeHTTP(rec, req)
		if rec.Code >= 500 {
			t.Fatalf("%q: %d %s", path, rec.Code, rec.Body)
		}
		for _, w := range r.wishes {
			if err := w.Entity.Check(); err != nil || w.Entity.Source != "nexon" || w.Entity.Facet != "character" {
				t.Fatalf("%q made the wish %+v", path, w)
			}
			escaped := strings.Split(req.URL.EscapedPath(), "/")
			if len(escaped) != 5 {
				t.Fatalf("%q has %d segments and made a wish", path, len(escaped))
			}
		}
	})
}

func ExampleFreshness() {
	fmt.Println(Fresh, Stale, Updating, NotFound)
	// Output: FRESH STALE UPDATING NOT_FOUND
}
