package client

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/problem"
)

func TestGet_ReturnsStatesAsResults(t *testing.T) {
	for want, s := range map[Freshness]*service{
		Fresh:    always(200, freshBody, "ETag", `W/"a"`),
		Stale:    always(200, strings.Replace(freshBody, "FRESH", "STALE", 1), "ETag", `W/"a"`),
		Updating: always(202, `{"freshness":"UPDATING","refresh":{"queued":true}}`, "Retry-After", "7"),
		NotFound: always(404, `{"status":404,"code":"not-found","detail":"The upstream has no such entity.","freshness":"NOT_FOUND"}`),
	} {
		got, err := newTestClient(t, s, Options{}).Get(t.Context(), anEntity)
		if err != nil || got.Freshness != want {
			t.Errorf("got %q, %v, want %q", got.Freshness, err, want)
		}
		if want == Updating && got.RetryAfter != 7*time.Second {
			t.Errorf("Updating: got RetryAfter %v, want 7s", got.RetryAfter)
		}
	}
}

func TestGet_ReturnsProblemsWithTheirCode(t *testing.T) {
	for _, c := range []struct {
		status int
		code   problem.Code
	}{{404, problem.NoSuchSource}, {404, problem.NotFound}, {401, problem.TokenInvalid}, {403, problem.InsufficientScope}, {400, problem.BadKey}} {
		_, err := newTestClient(t, always(c.status, problemBody(c.status, string(c.code)), "X-Correlation-Id", "an-id"), Options{}).Get(t.Context(), anEntity)
		p, ok := errors.AsType[*Problem](err)
		if !ok || p.Code != c.code || p.Status != c.status {
			t.Errorf("%s: got %v, want a problem of this code", c.code, err)
		} else if got := p.Header.Get("X-Correlation-Id"); got != "an-id" {
			t.Errorf("%s: got correlation id %q, want an-id", c.code, got)
		}
	}
}

func TestGet_RefusesOtherResponses(t *testing.T) {
	for name, s := range map[string]*service{
		"page":         always(200, "<html>"),
		"empty object": always(200, "{}"),
		"redirect":     always(302, "", "Location", "http://elsewhere.example"),
		"plain error":  always(404, "404 page not found"),
		"lone 304":     always(304, ""),
		"error page":   always(400, "<html>"),
	} {
		_, err := newTestClient(t, s, Options{MaxRetries: -1}).Get(t.Context(), anEntity)
		if err == nil || !strings.Contains(err.Error(), "unexpected response") {
			t.Errorf("%s: got %v, want an unexpected response", name, err)
		}
		if s.count() != 1 {
			t.Errorf("%s: got %d requests, want 1", name, s.count())
		}
	}
}

func TestGet_EscapesTheKey(t *testing.T) {
	s := always(200, freshBody)
	c := newTestClient(t, s, Options{})
	for key, want := range map[string]string{"golang/go": "golang%2Fgo", "a b?#": "a%20b%3F%23", "가": "%EA%B0%80", "a%2Fb": "a%252Fb"} {
		if _, err := c.Get(t.Context(), Entity{"github", "issues", key}); err != nil {
			t.Fatal(err)
		}
		if got := s.last().URL.EscapedPath(); got != "/v1/github/issues/"+want {
			t.Errorf("%q: got path %s, want /v1/github/issues/%s", key, got, want)
		}
	}
}

func TestGet_RefusesAnEntityWithoutAllParts(t *testing.T) {
	s := always(200, freshBody)
	for _, e := range []Entity{{}, {"nexon", "character", ""}, {"", "character", "a"}, {"nexon", "", "a"}} {
		if _, err := newTestClient(t, s, Options{}).Get(t.Context(), e); err == nil {
			t.Errorf("%+v: got no error, want one", e)
		}
	}
	if s.count() != 0 {
		t.Errorf("got %d requests, want none", s.count())
	}
}

func TestGetAs_DecodesTheSnapshot(t *testing.T) {
	type character struct{ Basic struct{ Level int } }
	got, err := GetAs[character](t.Context(), newTestClient(t, always(200, freshBody), Options{}), anEntity)
	if err != nil || got.Snapshot.Basic.Level != 7 {
		t.Errorf("got %+v, %v, want level 7", got.Snapshot, err)
	}
}

func TestGetAs_NamesTheTypeThatDoesNotFit(t *testing.T) {
	_, err := GetAs[[]int](t.Context(), newTestClient(t, always(200, freshBody), Options{}), anEntity)
	if err == nil || !strings.Contains(err.Error(), "decode the snapshot of nexon/character as []int") {
		t.Errorf("got %v, want an error that names []int", err)
	}
}

func TestGet_IsConditionalAfterTheFirstRead(t *testing.T) {
	s := &service{answer: func(n int, r *http.Request, w http.ResponseWriter) {
		switch {
		case n == 1:
			write(w, 200, freshBody, "ETag", `W/"a"`)
		case r.Header.Get("If-None-Match") != `W/"a"`:
			write(w, 400, problemBody(400, "bad-request"))
		default:
			write(w, 304, "", "ETag", `W/"a"`, "Age", "60", "Cache-Control", "private, max-age=0, stale-while-revalidate=9", "Last-Modified", "Fri, 20 Nov 2026 20:37:53 GMT")
		}
	}}
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient(t, s, Options{})
		first, err := c.Get(t.Context(), anEntity)
		if err != nil {
			t.Fatal(err)
		}
		clear(first.Snapshot) // the caller changes its copy; the cached snapshot must stay unchanged
		second, err := c.Get(t.Context(), anEntity)
		if err != nil || string(second.Snapshot) != `{"basic":{"level":7}}` {
			t.Fatalf("got %s, %v, want the first snapshot", second.Snapshot, err)
		}
		if second.Freshness != Stale {
			t.Errorf("max-age 0: got %s, want STALE", second.Freshness)
		}
		if want := time.Now().Add(-time.Minute); !second.LastCheckedAt.Equal(want) {
			t.Errorf("LastCheckedAt: got %v, want %v", second.LastCheckedAt, want)
		}
		if !second.LastUpdatedAt.Equal(first.LastUpdatedAt) {
			t.Errorf("LastUpdatedAt: got %v, want %v", second.LastUpdatedAt, first.LastUpdatedAt)
		}
	})
}

func TestGet_IsNotConditionalAfterNotFound(t *testing.T) {
	s := &service{answer: func(n int, _ *http.Request, w http.ResponseWriter) {
		if n == 2 {
			write(w, 404, `{"status":404,"code":"not-found","detail":"d","freshness":"NOT_FOUND"}`)
			return
		}
		write(w, 200, freshBody, "ETag", `W/"a"`)
	}}
	c := newTestClient(t, s, Options{})
	for range 3 {
		if _, err := c.Get(t.Context(), anEntity); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.last().Header.Get("If-None-Match"); got != "" {
		t.Errorf("got If-None-Match %q, want none", got)
	}
}

func sized(n int) Result[json.RawMessage] {
	return Result[json.RawMessage]{ETag: "e", Snapshot: make([]byte, n)}
}

func TestCache_StaysWithinItsLimit(t *testing.T) {
	c := newCache(3 * (cacheOverhead + 100))
	for i := range 50 {
		for _, key := range []string{"used", strings.Repeat("k", i+1)} {
			c.put(Entity{"s", "f", key}, sized(20*(i%7)))
			c.get(Entity{"s", "f", "used"})
		}
		if c.used > c.limit || len(c.lookup) != c.byUse.Len() {
			t.Fatalf("step %d: got %d bytes and %d entries, want at most %d bytes", i, c.used, c.byUse.Len(), c.limit)
		}
	}
	if c.get(Entity{"s", "f", "used"}).ETag == "" {
		t.Error("the entry that was used last: got none, want it kept")
	}
	c.put(Entity{"s", "f", "used"}, sized(9999))
	if c.get(Entity{"s", "f", "used"}).ETag != "" {
		t.Error("an entry above the limit: got it, want none")
	}
}

func TestGet_RequestsAWait(t *testing.T) {
	s := always(200, freshBody)
	if _, err := newTestClient(t, s, Options{}).Get(t.Context(), anEntity, Wait(1500*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if got := s.last().Header.Get("Prefer"); got != "wait=2" {
		t.Errorf("got Prefer %q, want wait=2", got)
	}
}

func TestGet_PassesTheTraceContextOn(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	type key struct{}
	s := always(200, freshBody)
	c := newTestClient(t, s, Options{Traceparent: func(ctx context.Context) string { v, _ := ctx.Value(key{}).(string); return v }})
	if _, err := c.Get(context.WithValue(t.Context(), key{}, parent), anEntity); err != nil {
		t.Fatal(err)
	}
	if got := s.last().Header.Get("traceparent"); got != parent {
		t.Errorf("got %q, want %q", got, parent)
	}
}

func TestGet_DecompressesWithTheDecoder(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, freshBody)
	_ = z.Close()
	opened := 0
	decoder := func(r io.Reader) (io.ReadCloser, error) { opened++; return gzip.NewReader(r) } // a gzip decoder in place of a zstd decoder, which the standard library does not have
	for _, encoding := range []string{"gzip", "zstd"} {
		s := always(200, packed.String(), "Content-Encoding", encoding)
		got, err := newTestClient(t, s, Options{Zstd: decoder}).Get(t.Context(), anEntity)
		if err != nil || got.Freshness != Fresh {
			t.Errorf("%s: got %q, %v, want FRESH", encoding, got.Freshness, err)
		}
		if got := s.last().Header.Get("Accept-Encoding"); got != "zstd, gzip" {
			t.Errorf("%s: got Accept-Encoding %q, want zstd, gzip", encoding, got)
		}
	}
	if opened != 1 {
		t.Errorf("got %d calls of the decoder, want 1", opened)
	}
}

func TestGet_LimitsTheDecompressedSize(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Close()
	s := always(200, packed.String(), "Content-Encoding", "gzip")
	_, err := newTestClient(t, s, Options{MaxResponseBytes: 1000}).Get(t.Context(), anEntity)
	if err == nil || !strings.Contains(err.Error(), "larger than 1000 bytes") {
		t.Errorf("got %v, want an error that names the limit", err)
	}
	if s.count() != 1 {
		t.Errorf("got %d requests, want 1", s.count())
	}
}

func TestGetMany_ReturnsItemsInOrder(t *testing.T) {
	s := always(200, `{"items":[{"key":"a","status":200,`+strings.TrimPrefix(freshBody, "{")+`,{"key":"b c","status":503,"freshness":"MISSING","refresh":{"queued":false,"reason":"BUSY"}},{"key":"%","status":400,"freshness":"MISSING","detail":"bad"}]}`)
	got, err := newTestClient(t, s, Options{}).GetMany(t.Context(), "nexon", "character", []string{"a", "b c", "%"})
	if err != nil || len(got) != 3 {
		t.Fatalf("got %d items, %v, want 3", len(got), err)
	}
	if got[0].Freshness != Fresh || got[1].Freshness != Missing || got[1].Refresh.Reason != "BUSY" || got[2].Detail != "bad" {
		t.Errorf("got %+v, want FRESH, MISSING with BUSY, and a detail", got)
	}
	if query := s.last().URL.RawQuery; query != "key=a&key=b+c&key=%25" {
		t.Errorf("got query %s, want each key once", query)
	}
}

func TestGetMany_LimitsTheKeys(t *testing.T) {
	s := always(200, "{}")
	for _, n := range []int{0, MaxKeys + 1} {
		if _, err := newTestClient(t, s, Options{}).GetMany(t.Context(), "nexon", "character", make([]string, n)); err == nil {
			t.Errorf("%d keys: got no error, want one", n)
		}
	}
	if s.count() != 0 {
		t.Errorf("got %d requests, want none", s.count())
	}
}

func TestGetMany_RefusesMissingItems(t *testing.T) {
	_, err := newTestClient(t, always(200, `{"items":[]}`), Options{}).GetMany(t.Context(), "nexon", "character", []string{"a"})
	if err == nil {
		t.Error("got no error, want one")
	}
}

func TestRefresh_ReturnsTheStateOfTheRefresh(t *testing.T) {
	s := always(202, `{"refresh":{"queued":true,"estimatedWaitMs":1500}}`)
	got, err := newTestClient(t, s, Options{}).Refresh(t.Context(), anEntity)
	if err != nil || got.Freshness != "" || got.Refresh == nil || !got.Refresh.Queued || *got.Refresh.EstimatedWaitMs != 1500 {
		t.Errorf("got %+v, %v, want a queued refresh", got, err)
	}
	if r := s.last(); r.Method != http.MethodPost || r.URL.Path != "/v1/nexon/character/somebody/refresh" {
		t.Errorf("got %s %s, want POST of the refresh", r.Method, r.URL.Path)
	}
}

func TestRefresh_RepeatedRequestsHaveTheSameIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failing(1, http.StatusBadGateway, "")
		c := newTestClient(t, s, Options{})
		for range 2 {
			if _, err := c.Refresh(t.Context(), anEntity); err != nil {
				t.Fatal(err)
			}
		}
		var keys []string
		for _, r := range s.requests {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
		}
		if len(keys) != 3 || keys[0] == "" || keys[0] != keys[1] || keys[1] == keys[2] {
			t.Errorf("got keys %q, want two equal ones, then another", keys)
		}
	})
}

func TestRefresh_EndsWithoutAScopeToRead(t *testing.T) {
	got, err := newTestClient(t, always(204, ""), Options{}).Refresh(t.Context(), anEntity, Wait(time.Second))
	if err != nil || got.Freshness != "" || got.Refresh != nil {
		t.Errorf("got %+v, %v, want an empty result", got, err)
	}
}

func TestNew_RefusesInvalidBaseURLs(t *testing.T) {
	for _, base := range []string{"", "freshet.example", "ftp://freshet.example", "http://", "http://a/?q=1", "http://a/#f", "http://[::1"} {
		if _, err := New(base, Options{}); err == nil {
			t.Errorf("%q: got no error, want one", base)
		}
	}
}
