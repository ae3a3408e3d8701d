package query

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

func TestRead_FreshEnqueuesNothing(t *testing.T) {
	r := newRig(t)
	s := r.putSnapshot("a", 10*time.Minute)
	a := r.get("a")
	if a.StatusCode != 200 || a.body.Freshness != store.Fresh || string(a.body.Snapshot) != content || a.body.Refresh.Queued || a.body.Refresh.Reason != "" {
		t.Errorf("got %d %s, want 200 FRESH", a.StatusCode, a.text)
	}
	if !a.body.LastCheckedAt.Equal(s.CheckedAt) || !a.body.LastUpdatedAt.Equal(s.UpdatedAt) {
		t.Errorf("times: got %v, %v, want %v, %v", a.body.LastCheckedAt, a.body.LastUpdatedAt, s.CheckedAt, s.UpdatedAt)
	}
	for name, want := range map[string]string{
		"Age": "600", "Cache-Control": "private, max-age=3600, stale-while-revalidate=3600", "Cache-Status": "freshet; hit; ttl=2999",
		"Content-Type": "application/json", "Last-Modified": s.UpdatedAt.Format(http.TimeFormat),
	} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if len(r.requests) != 0 {
		t.Errorf("update requests: got %+v, want none", r.requests)
	}
}

func TestRead_StaleEnqueuesARefresh(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	r.wait = 1500 * time.Millisecond
	a := r.get("a", "X-Correlation-Id", "corr-1", "traceparent", trace)
	if a.StatusCode != 200 || a.body.Freshness != store.Stale || string(a.body.Snapshot) != content || !a.body.Refresh.Queued || *a.body.Refresh.EstimatedWaitMs != 1500 {
		t.Errorf("got %d %s, want 200 STALE", a.StatusCode, a.text)
	}
	if got := a.Header.Get("Cache-Control"); !strings.HasPrefix(got, "private, max-age=0,") {
		t.Errorf("Cache-Control: got %s, want the prefix %q", got, "private, max-age=0,")
	}
	want := UpdateRequest{Entity: entity("a"), Reason: schemas.Stale, Floor: 7, CorrelationID: "corr-1", TraceParent: trace, Client: r.client.ID()}
	if len(r.requests) != 1 || r.requests[0] != want {
		t.Errorf("update requests: got %+v, want %+v", r.requests, want)
	}
	if a.Header.Get("X-Correlation-Id") != "corr-1" {
		t.Errorf("correlation id: got %q, want corr-1", a.Header.Get("X-Correlation-Id"))
	}
}

func TestRead_FirstIsUpdatingWithRetryAfter(t *testing.T) {
	r := newRig(t)
	a := r.get("a")
	if a.StatusCode != 202 || a.body.Freshness != store.Updating || a.body.Snapshot != nil || !a.body.Refresh.Queued ||
		a.Header.Get("Retry-After") != "1" || a.body.LastCheckedAt != nil || a.body.Refresh.EstimatedWaitMs != nil {
		t.Errorf("got %d %s %v, want 202 UPDATING", a.StatusCode, a.text, a.Header)
	}
	r.wait = 4200 * time.Millisecond
	if a := r.get("a"); a.Header.Get("Retry-After") != "5" || *a.body.Refresh.EstimatedWaitMs != 4200 {
		t.Errorf("first read: got %s with Retry-After %s, want 4200 ms with Retry-After 5", a.text, a.Header.Get("Retry-After"))
	}
	if r.requests[0].Reason != schemas.CacheMiss || r.requests[0].Floor != 0 || len(r.requests[0].CorrelationID) != 36 {
		t.Errorf("update request: got %+v, want CACHE_MISS, the floor 0 and a correlation id of 36 characters", r.requests[0])
	}
}

func TestRead_PendingIsNotQueued(t *testing.T) {
	r := newRig(t)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Pending: true} }
	a := r.get("a")
	if a.StatusCode != 202 || a.body.Refresh.Queued || a.body.Refresh.Reason != "PENDING" {
		t.Errorf("got %d %s, want 202", a.StatusCode, a.text)
	}
}

func TestRead_NotFoundIsServedUntilNotFoundFor(t *testing.T) {
	r := newRig(t)
	notFound := func(s *store.Snapshot) { s.NotFound = true }
	r.putSnapshot("a", 10*time.Minute, notFound)
	a := r.get("a")
	if a.StatusCode != 404 || a.body.Freshness != store.NotFound || a.body.Code != "not-found" || len(r.requests) != 0 ||
		a.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("got %d %s, %d update requests, want 404 NOT_FOUND not-found", a.StatusCode, a.text, len(r.requests))
	}
	r.putSnapshot("a", 2*time.Hour, notFound)
	if a := r.get("a"); a.StatusCode != 404 || !a.body.Refresh.Queued || len(r.requests) != 1 {
		t.Errorf("got %d %s, %d update requests, want 404", a.StatusCode, a.text, len(r.requests))
	}
}

func TestRead_DoesNotServeBeyondKeepFor(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute, func(s *store.Snapshot) { s.FetchedAt = time.Now().Add(-101 * time.Hour) })
	if a := r.get("a"); a.StatusCode != 202 || strings.Contains(a.text, "유") {
		t.Errorf("got %d %s, want 202", a.StatusCode, a.text)
	}
}

func TestRead_NotModifiedHasNoBody(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	etag := r.get("a").Header.Get("ETag")
	if !strings.HasPrefix(etag, `W/"`) {
		t.Fatalf("tag: got %s, want the prefix %q", etag, `W/"`)
	}
	for header, want := range map[string]int{
		etag: 304, strings.TrimPrefix(etag, "W/"): 304, "*": 304, `"x", ` + etag + `, "y"`: 304, `W/"x",` + etag: 304,
		`"x"`: 200, `"x`: 200, "x": 200, "": 200, etag[:len(etag)-2] + `"`: 200, "W/": 200, `"x" ` + etag: 304,
	} {
		a := r.get("a", "If-None-Match", header)
		if a.StatusCode != want || (want == 304) != (a.text == "") {
			t.Errorf("If-None-Match: %s: got %d %s, want %d, and no text with 304", header, a.StatusCode, a.text, want)
		}
	}
	r.putSnapshot("a", 2*time.Hour) // the snapshot is stale, with the same content: the client must get 304, and a refresh is queued
	if a := r.get("a", "If-None-Match", etag); a.StatusCode != 304 || len(r.requests) != 1 {
		t.Errorf("stale: got %d, %d update requests, want 304", a.StatusCode, len(r.requests))
	}
	if a := r.do(http.MethodHead, "/v1/nexon/character/a"); a.StatusCode != 200 || a.Header.Get("ETag") != etag {
		t.Errorf("HEAD: got %d, want 200", a.StatusCode)
	}
}

func TestRead_WorksWithoutRedisOrKafka(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	until := time.Now().Add(time.Hour)
	for reason, until := range map[RefreshReason]time.Time{ReasonDown: {}, ReasonBusy: {}, "HELD_FAILED": until} {
		r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: reason, Until: until} }
		a := r.get("a")
		if a.StatusCode != 200 || a.body.Freshness != store.Stale || a.body.Refresh.Queued || a.body.Refresh.Reason != reason ||
			(a.body.Refresh.Until == nil) != until.IsZero() {
			t.Errorf("%s: got %d %s, want 200 STALE", reason, a.StatusCode, a.text)
		}
		a = r.get("never-seen")
		if a.StatusCode != 503 || a.body.Freshness != freshnessMissing || a.body.Refresh.Reason != reason || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: got %d %s, want 503 MISSING", reason, a.StatusCode, a.text)
		}
	}
	r.respond = func(context.Context, UpdateRequest) EnqueueResult {
		return EnqueueResult{Reason: "HELD_NOT_FOUND", Until: until}
	}
	if a := r.get("never-seen"); a.StatusCode != 404 || a.body.Freshness != store.NotFound {
		t.Errorf("held notFound: got %d %s, want 404 NOT_FOUND", a.StatusCode, a.text)
	}
}

func TestRead_DoesNotWaitForAHangingEnqueue(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	release := make(chan struct{})
	ended := make(chan error, 1)
	r.respond = func(ctx context.Context, _ UpdateRequest) EnqueueResult {
		<-release
		ended <- ctx.Err()
		return EnqueueResult{Queued: true}
	}
	a := r.get("a") // this read returns although the Enqueuer hangs
	if a.StatusCode != 200 || a.body.Refresh.Queued || a.body.Refresh.Reason != "SLOW" {
		t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
	}
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("enqueue with a canceled reader: got %v, want no error", err)
	}
}

func TestRead_DatabaseFailureHasRetryAfter(t *testing.T) {
	r := newRig(t)
	r.storeErr = errors.New("connection refused to postgres://secret@db")
	a := r.get("a")
	if a.StatusCode != 503 || a.body.Code != "store-unavailable" || a.Header.Get("Retry-After") != "1" || strings.Contains(a.text, "secret") {
		t.Errorf("got %d %s, want 503 store-unavailable", a.StatusCode, a.text)
	}
}
