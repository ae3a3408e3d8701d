package query

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// layout is the raw content of an entity: an XML document.
var layout = `<?xml version="1.0"?><w2:layout xmlns:w2="u">` + strings.Repeat("<w2:row/>", 200) + `</w2:layout>`

// encodedLayout is the stored form of layout. It is created outside of synctest bubbles, because the
// zstd codec keeps channels between its calls.
var encodedLayout = store.Encode([]byte(layout))

// rawFacet makes the facet of a test raw and immutable.
func rawFacet(f *source.Facet) {
	f.KeyPattern = "[^!]+"
	f.Raw, f.Immutable, f.Public, f.KeepFor = &source.Raw{MediaType: "application/xml", WellFormed: "xml"}, true, true, 0
}

// asLayout turns a snapshot into one of a raw facet (an XML layout).
func asLayout(s *store.Snapshot) {
	s.Payload, s.Size, s.Hash, s.MediaType = encodedLayout.Bytes, encodedLayout.Size, sha256.Sum256([]byte(layout)), "application/xml"
}

func newRawRig(t testing.TB, change ...func(*source.Facet)) *rig {
	return newRig(t, func(r *rig) {
		r.settings = func(f *source.Facet) {
			rawFacet(f)
			for _, c := range change {
				c(f)
			}
		}
	})
}

func TestRaw_ServesTheBytes(t *testing.T) {
	r := newRawRig(t)
	r.putSnapshot("a/b.xml", 1000*time.Hour, asLayout)
	tags := map[string]bool{}
	for _, accept := range []string{"", "gzip", "zstd"} {
		a := r.get("a/b.xml", "Accept-Encoding", accept, "Range", "bytes=0-3")
		tags[a.Header.Get("ETag")] = true
		if a.StatusCode != http.StatusOK || a.text != layout || a.Header.Get("Content-Encoding") != accept || a.ContentLength < 0 {
			t.Errorf("%q: got %d, %d bytes in %q, want 200 with the whole layout in this encoding", accept, a.StatusCode, len(a.text), a.Header.Get("Content-Encoding"))
		}
		for name, want := range map[string]string{
			"Content-Type": "application/xml", "Cache-Control": "public, max-age=31536000, immutable", "Accept-Ranges": "", "X-Content-Type-Options": "nosniff",
			"Vary": "Accept-Encoding", "Age": "", "Freshet-Degraded": "", "Content-Security-Policy": sandboxed[0],
		} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("%q: %s: got %q, want %q", accept, name, got, want)
			}
		}
		if tag := a.Header.Get("ETag"); !strings.HasPrefix(tag, `"`) || r.get("a/b.xml", "Accept-Encoding", accept, "If-None-Match", tag).StatusCode != http.StatusNotModified {
			t.Errorf("%q: got the tag %s, want a strong one that matches", accept, tag)
		}
		if head := r.do(http.MethodHead, "/v1/nexon/character/a%2Fb.xml", "Accept-Encoding", accept); head.text != "" || head.Header.Get("Content-Length") != a.Header.Get("Content-Length") {
			t.Errorf("%q: HEAD: got %q, Content-Length %s, want that of GET %s", accept, head.text, head.Header.Get("Content-Length"), a.Header.Get("Content-Length"))
		}
	}
	if len(tags) != 3 {
		t.Errorf("got the tags %v, want one for each encoding", tags)
	}
	if n := len(r.enqueued()); n != 0 {
		t.Errorf("got %d update requests, want none of an immutable facet", n)
	}
	if got := r.storeReads(); got != 1 {
		t.Errorf("got %d reads of the store, want 1", got)
	}
}

func TestRaw_OtherResponsesAreJSON(t *testing.T) {
	r := newRawRig(t)
	r.respond = func(_ context.Context, w UpdateRequest) EnqueueResult {
		return EnqueueResult{Queued: true, Number: 100}
	}
	if a := r.get("missing"); a.StatusCode != http.StatusAccepted || a.body.Freshness != store.Updating {
		t.Errorf("missing: got %d %s, want 202 UPDATING", a.StatusCode, a.text)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=a&key=b"); a.StatusCode != http.StatusBadRequest || a.body.Code != "raw-facet" {
		t.Errorf("several keys: got %d %s, want 400 raw-facet", a.StatusCode, a.text)
	}
	r.putSnapshot("gone", 0, func(s *store.Snapshot) {
		s.State = store.State{Entity: s.Entity, Version: 8, NotFound: true, CheckedAt: s.CheckedAt}
		s.Payload = nil
	})
	if a := r.get("gone"); a.StatusCode != http.StatusNotFound || a.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("not found: got %d %s, want 404 as a problem", a.StatusCode, a.text)
	}
	if a := r.do(http.MethodGet, "/v1/nexon"); !strings.Contains(a.text, `"mediaType":"application/xml","immutable":true`) {
		t.Errorf("list of facets: got %s, want its media type and immutable", a.text)
	}
}

// If the setting `raw` of a facet was changed, the stored content has another form than the facet.
// Then it must be fetched again.
func TestRaw_OtherMediaTypeIsFetchedAgain(t *testing.T) {
	r := newRawRig(t)
	r.putSnapshot("json", time.Minute)
	r.putSnapshot("png", time.Minute, asLayout, func(s *store.Snapshot) { s.MediaType = "image/png" })
	json := newRig(t)
	json.putSnapshot("raw", time.Minute, asLayout)
	for key, r := range map[string]*rig{"json": r, "png": r, "raw": json} {
		if a := r.get(key); a.StatusCode != http.StatusAccepted || len(r.enqueued()) == 0 {
			t.Errorf("%s: got %d %s and requests %v, want a refresh", key, a.StatusCode, a.text, r.enqueued())
		}
	}
	if a := json.do(http.MethodGet, "/v1/nexon/character?key=raw"); a.StatusCode != http.StatusOK || a.body.Items[0].Status != http.StatusAccepted {
		t.Errorf("item: got %s, want the status 202", a.text)
	}
}

// An event of a raw entity has the strong tag of the identity encoding, and the tag survives a reconnect.
func TestRaw_EventIDKeepsTag(t *testing.T) {
	r := newRawRig(t)
	r.putSnapshot("a", time.Minute, asLayout)
	tag := r.get("a").Header.Get("ETag")
	e := r.server.entryOf("a")
	if e.etags[identity][0] != tag {
		t.Errorf("got tag %s, want %s", e.etags[identity][0], tag)
	}
	was := streamState{version: 7, tag: e.tag(), freshness: store.Fresh}
	if got := parseEventID(was.id()); got != was {
		t.Errorf("got %+v after a reconnect, want %+v", got, was)
	}
}

func TestImmutable_MemoryIsUsedUntilSettled(t *testing.T) {
	r := newRawRig(t)
	r.putSnapshot("a", time.Minute, asLayout)
	r.get("a")
	e := r.server.entryOf("a")
	reads := r.storeReads()
	later := r.server.cache.now() + int64(1000*cacheTTL)
	if !r.server.cache.isValid(e, later) {
		t.Error("the entry is not valid after 1000 cacheTTL")
	}
	r.server.onConnection(false)
	if r.get("a"); r.storeReads() != reads {
		t.Error("the store was read while the subscription was lost")
	}
	r.server.onConnection(true)
	if r.get("a"); r.storeReads() != reads+1 {
		t.Errorf("after a reconnect: got %d reads of the store, want %d", r.storeReads(), reads+1)
	}
	r.settle("a", 9)
	if r.get("a"); r.storeReads() != reads+2 {
		t.Errorf("after a settle: got %d reads of the store, want %d", r.storeReads(), reads+2)
	}
}

// patientRig returns a query service with a raw facet whose reads wait for the first snapshot (setting
// `wait`).
func patientRig(t *testing.T, wait time.Duration) *rig {
	r := newRawRig(t, func(f *source.Facet) { f.Wait = wait })
	r.wait = time.Second
	return r
}

func TestWait_DefaultWaitsOnlyForTheFirst(t *testing.T) {
	r := patientRig(t, testTimeout)
	r.respond = func(_ context.Context, w UpdateRequest) EnqueueResult {
		go r.putSnapshot(w.Entity.Key, 0, asLayout, func(s *store.Snapshot) { s.Version = 101 })
		return EnqueueResult{Queued: true, Number: 100}
	}
	if a := r.get("a"); a.StatusCode != http.StatusOK || a.text != layout {
		t.Fatalf("got %d %.80s, want the first snapshot", a.StatusCode, a.text)
	}
	waits := strings.Count(strings.Join(r.limiterCalls, "\n"), "wait ")
	if r.get("a"); waits != 1 || strings.Count(strings.Join(r.limiterCalls, "\n"), "wait ") != 1 {
		t.Errorf("limiter calls: got %v, want one wait", r.limiterCalls)
	}
	if a := r.get("b?wait=0"); a.StatusCode != http.StatusAccepted {
		t.Errorf("a read that says wait=0: got %d, want 202", a.StatusCode)
	}
}

func TestWait_NothingKnownIs503(t *testing.T) {
	for name, c := range map[string]struct {
		result  EnqueueResult
		blocked RefreshReason
		code    string
	}{
		"upstream down": {EnqueueResult{Queued: true, Number: 100}, ReasonUpstreamDown, "wait-expired"},
		"slow fetch":    {EnqueueResult{Queued: true, Number: 100}, "", "wait-expired"},
		"held":          {EnqueueResult{Reason: HeldReason("RETRYING"), Until: time.Now().Add(time.Hour)}, "", "not-queued"},
		"redis down":    {EnqueueResult{Reason: ReasonDown}, "", "not-queued"},
	} {
		r := patientRig(t, 10*time.Millisecond)
		r.blocked = c.blocked
		r.respond = func(context.Context, UpdateRequest) EnqueueResult { return c.result }
		a := r.get("a")
		if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") != "5" || a.body.Code != c.code {
			t.Errorf("%s: got %d %s, Retry-After %s, want 503 %s, 5", name, a.StatusCode, a.text, a.Header.Get("Retry-After"), c.code)
		}
	}
}

func TestDegraded_NamesOriginAndReason(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	if a := r.get("a"); a.Header.Get("Freshet-Degraded") != "" {
		t.Errorf("a queued refresh: got degraded %q, want none", a.Header.Get("Freshet-Degraded"))
	}
	r.blocked = ReasonUpstreamDown
	check := func(want, origin string) {
		t.Helper()
		a := r.get("a")
		detail := fmt.Sprintf(`detail="%s; %s"`, origin, want)
		if got := a.Header.Get("Freshet-Degraded"); a.StatusCode != http.StatusOK || got != want || !strings.HasSuffix(a.Header.Get("Cache-Status"), detail) {
			t.Errorf("got %d, degraded %q, Cache-Status %q, want %q and %s", a.StatusCode, got, a.Header.Get("Cache-Status"), want, detail)
		}
	}
	check("UPSTREAM_DOWN", "stored")
	r.blocked = ""
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: HeldReason("FAILED")} }
	check("HELD_FAILED", "stored")
	r.respond = nil
	if got := r.get("a?wait=10ms").Header.Get("Freshet-Degraded"); got != "WAIT_EXPIRED" {
		t.Errorf("expired wait: got %q, want WAIT_EXPIRED", got)
	}
	r.mu.Lock()
	r.storeErr = errors.New("down")
	r.mu.Unlock()
	r.settle("a", 8)
	check("STORE_UNAVAILABLE", "memory")
}
