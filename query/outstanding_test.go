package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// fullResult returns the result for a client that has used its share of outstanding requests.
func fullResult(context.Context, UpdateRequest) EnqueueResult {
	return EnqueueResult{
		Reason: ReasonOutstanding, Until: time.Now().Add(3 * time.Second), Refused: &access.Refusal{Max: 45, After: 3 * time.Second},
	}
}

func TestTooManyOutstanding_Is429WithoutASnapshot(t *testing.T) {
	r := newRig(t)
	r.respond = fullResult
	a := r.get("new")
	if a.StatusCode != 429 || a.body.Code != "too-many-outstanding" || a.body.Refresh.Reason != ReasonOutstanding ||
		a.body.Freshness != freshnessMissing || a.Header.Get("Retry-After") != "3" || a.Header.Get("RateLimit-Policy") != `"outstanding";q=45;qu="concurrent-requests"` {
		t.Errorf("got %d %s %v, want 429 MISSING too-many-outstanding", a.StatusCode, a.text, a.Header)
	}
}

func TestTooManyOutstanding_ServesTheStaleSnapshot(t *testing.T) {
	r := newRig(t)
	r.respond = fullResult
	r.putSnapshot("a", 2*time.Hour)
	a := r.get("a")
	if a.StatusCode != 200 || a.body.Freshness != store.Stale || a.body.Refresh.Queued || a.body.Refresh.Reason != ReasonOutstanding || a.body.Refresh.Until == nil {
		t.Errorf("got %d %s, want 200 STALE", a.StatusCode, a.text)
	}
}

func TestTooManyOutstanding_Refuses429ToARefresh(t *testing.T) {
	r := newRig(t)
	r.respond = fullResult
	r.putSnapshot("a", 0)
	for _, path := range []string{"a", "new"} {
		if a := r.refresh(path); a.StatusCode != 429 || a.body.Code != "too-many-outstanding" || a.Header.Get("Retry-After") != "3" {
			t.Errorf("%s: got %d %s, want 429 too-many-outstanding", path, a.StatusCode, a.text)
		}
	}
}

func TestTooManyOutstanding_IsReportedPerItem(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("fresh", 0)
	r.putSnapshot("stale", 2*time.Hour)
	r.respond = func(ctx context.Context, w UpdateRequest) EnqueueResult {
		if w.Entity.Key == "first" {
			return EnqueueResult{Queued: true, Number: 100}
		}
		return fullResult(ctx, w)
	}
	a := r.do(http.MethodGet, "/v1/nexon/character?key=fresh&key=first&key=second&key=stale")
	if a.StatusCode != 200 || len(a.body.Items) != 4 {
		t.Fatalf("got %d %s, want 200", a.StatusCode, a.text)
	}
	for i, want := range []int{200, 202, 429, 200} {
		if got := a.body.Items[i]; got.Status != want || (i > 1) != (got.Refresh.Reason != "" && got.Refresh.Reason == ReasonOutstanding) {
			t.Errorf("item %d: got %+v, want %d", i, got, want)
		}
	}
}

// A refusal of one client must not affect another client that reads the same entity at the same
// moment, even if one batch has both requests.
func TestEnqueueRead_SharesNothingBetweenClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		busy := make(chan struct{}) // the first batches stay in flight until this channel is closed
		r.respond = func(ctx context.Context, w UpdateRequest) EnqueueResult {
			<-busy
			if w.Client == (access.Client{Name: "flood"}).ID() {
				return fullResult(ctx, w)
			}
			return EnqueueResult{Queued: true, Number: 100}
		}
		for i := range maxBatches {
			go r.server.requester.batcher.enqueue(UpdateRequest{Entity: entity("other" + strconv.Itoa(i))}, true)
		}
		synctest.Wait()
		type result struct {
			client string
			EnqueueResult
		}
		results := make(chan result, 2)
		for _, name := range []string{"flood", "reader"} {
			go func() {
				req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
				c := r.server.echo.NewContext(req, httptest.NewRecorder())
				w := UpdateRequest{Entity: entity("a"), Reason: schemas.CacheMiss}
				results <- result{name, r.server.requester.enqueueRead(c, access.Client{Name: name}, w, acceptDeadline(0))}
			}()
			synctest.Wait()
		}
		close(busy)
		for range 2 {
			if got, want := <-results, "reader"; got.Queued != (got.client == want) {
				t.Errorf("%s: got queued %v, want only the %s queued", got.client, got.Queued, want)
			}
		}
	})
}

func TestUpdateRequests_AreNewForMissingKeys(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("stale", 2*time.Hour)
	r.get("stale")
	r.get("new")
	r.refresh("stale")
	r.refresh("other")
	r.do(http.MethodGet, "/v1/nexon/character?key=third&key=stale")
	want := map[string]bool{"stale": false, "new": true, "other": true, "third": true}
	for i, w := range r.enqueued() {
		if w.New != want[w.Entity.Key] || w.Client != r.client.ID() {
			t.Errorf("update request %s: got %+v, want new %v and the client %v", strconv.Itoa(i), w, want[w.Entity.Key], r.client.ID())
		}
	}
}

func TestOpenAPI_NamesTheBoundsOfAClient(t *testing.T) {
	for _, want := range []string{"too-many-outstanding", "too-many-new-keys", string(ReasonOutstanding), string(ReasonTooMany)} {
		if !strings.Contains(string(schemas.OpenAPI), want) {
			t.Errorf("openapi.yaml: got no %s, want a text that contains it", want)
		}
	}
}
