package query

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/store"
)

func TestResponse_IsEqualInEachEncoding(t *testing.T) {
	r := newRig(t)
	r.wait = time.Second
	for name, age := range map[string]time.Duration{"fresh": time.Minute, "stale": 2 * time.Hour} {
		s := r.putSnapshot(name, age)
		plain := r.get(name)
		if plain.Header.Get("Content-Encoding") != "" || plain.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: got the headers %v, want no Content-Encoding, and Vary: Accept-Encoding", name, plain.Header)
		}
		for _, as := range []string{"zstd", "gzip"} {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nexon/character/"+name, nil)
			req.Header.Set("Accept-Encoding", as)
			rec := httptest.NewRecorder()
			r.server.ServeHTTP(rec, req)
			raw := bytes.Clone(rec.Body.Bytes())
			a := r.checked(req, rec)
			if a.Header.Get("Content-Encoding") != as || a.text != plain.text || a.Header.Get("ETag") != plain.Header.Get("ETag") {
				t.Errorf("%s, %s: got %v\n%s\nwant the ETag %s and\n%s", name, as, a.Header, a.text, plain.Header.Get("ETag"), plain.text)
			}
			if n, _ := strconv.Atoi(a.Header.Get("Content-Length")); n != len(raw) {
				t.Errorf("%s, %s: Content-Length: got %d, want %d", name, as, n, len(raw))
			}
			if as == "zstd" && !bytes.Contains(raw, s.Payload) {
				t.Errorf("%s: got an answer without the stored frame, want the frame in it", name)
			}
		}
	}
}

func TestStaleGzip_IsCompressedAgainWhenItsFieldsChange(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	var last *body
	for i, c := range []struct {
		wait time.Duration
		kept bool
	}{{time.Second, false}, {time.Second, true}, {2 * time.Second, false}} {
		r.set(func() { r.wait = c.wait })
		a := r.get("a", "Accept-Encoding", "gzip")
		if got := a.body.Refresh.EstimatedWaitMs; got == nil || *got != c.wait.Milliseconds() {
			t.Errorf("read %d, estimatedWaitMs: got %s, want %d", i, a.text, c.wait.Milliseconds())
		}
		now := r.server.entryOf("a").staleGzip.Load()
		if kept := now == last; kept != c.kept {
			t.Errorf("read %d, same compressed body as before: got %v, want %v", i, kept, c.kept)
		}
		last = now
	}
}

func TestResponse_RejectsUnknownPayloadEncoding(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute, func(s *store.Snapshot) { s.Encoding = "brotli" })
	for _, as := range []string{"zstd", "gzip", ""} {
		if a := r.get("a", "Accept-Encoding", as); a.StatusCode != 500 || a.body.Code != "internal" {
			t.Errorf("%q: got %d %s, want 500 internal", as, a.StatusCode, a.text)
		}
	}
}

func TestCacheControl_IsPublicOnlyForPublicFacets(t *testing.T) {
	r := newRig(t)
	for facet, want := range map[string]string{"character": "private, max-age=3600,", "shared": "public, max-age=3600,"} {
		r.putSnapshot("a", 0, func(s *store.Snapshot) { s.Entity.Facet = facet })
		a := r.do(http.MethodGet, "/v1/nexon/"+facet+"/a")
		if got := a.Header.Get("Cache-Control"); a.StatusCode != 200 || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %d %s, want 200", facet, a.StatusCode, got)
		}
	}
}

func TestAge_FollowsTheClock(t *testing.T) {
	r := newRig(t)
	s := r.putSnapshot("a", time.Minute)
	e := newEntry(s, r.facet(), 1, nil, func(*entry) {})
	for _, c := range []struct {
		after            time.Duration
		age, cacheStatus string
	}{
		{59*time.Second + 999*time.Millisecond, "59", "freshet; hit; ttl=3540"},
		{60 * time.Second, "60", "freshet; hit; ttl=3540"},
		{61 * time.Second, "61", "freshet; hit; ttl=3539"},
		{-time.Second, "0", "freshet; hit; ttl=3601"}, // the last check is one second in the future, because the worker's clock is ahead of the query service's clock
	} {
		st := e.timeHeaders(store.Fresh, s.CheckedAt.Add(c.after))
		if st.age[0] != c.age || st.cacheStatus[0] != c.cacheStatus {
			t.Errorf("after %v: got %v %v, want %v %v", c.after, st.age, st.cacheStatus, c.age, c.cacheStatus)
		}
	}
}

func TestBatch_AnswersEachKeyAsIfAlone(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("fresh", time.Minute)
	r.putSnapshot("stale", 2*time.Hour)
	r.putSnapshot("notfound", time.Minute, func(s *store.Snapshot) { s.NotFound = true })
	before := r.storeReads()
	for _, as := range []string{"", "gzip", "zstd"} {
		a := r.do(http.MethodGet, "/v1/nexon/character?key=fresh&key=new&key=notfound&key=stale&key=fresh&key=%EA%B0%80", "Accept-Encoding", as)
		want := []struct {
			status    int
			freshness store.Freshness
			queued    bool
		}{{200, store.Fresh, false}, {202, store.Updating, true}, {404, store.NotFound, false}, {200, store.Stale, true}, {200, store.Fresh, false}, {202, store.Updating, true}}
		if a.StatusCode != 200 || a.Header.Get("Content-Encoding") != as || len(a.body.Items) != len(want) {
			t.Fatalf("%q: got %d %s, want 200", as, a.StatusCode, a.text)
		}
		for i, w := range want {
			it := a.body.Items[i]
			has := string(it.Snapshot) == content
			if it.Status != w.status || it.Freshness != w.freshness || it.Refresh.Queued != w.queued || has != (w.status == 200) {
				t.Errorf("%q: item %d: got %+v, want %+v", as, i, it, w)
			}
		}
		if a.body.Items[5].Key != "가" {
			t.Errorf("key: got %q, want 가", a.body.Items[5].Key)
		}
	}
	if n := r.storeReads() - before; n != 1 { // the first of the three batches caches all keys, also keys without a snapshot, so the other two must not read the store
		t.Errorf("got %d store reads for three batches, want 1", n)
	}
	for _, query := range []string{"", "?kay=a", "?" + strings.Repeat("key=a&", 101)} {
		if a := r.do(http.MethodGet, "/v1/nexon/character"+query); a.StatusCode != 400 || a.body.Code != "bad-keys" {
			t.Errorf("%.30s: got %d %s, want 400", query, a.StatusCode, a.text)
		}
	}
}

func TestBatch_InvalidKeyIsAnItem(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	keys := []string{"a", "..", strings.Repeat("k", 257), "a\n", "\xff", "a"}
	a := r.do(http.MethodGet, "/v1/nexon/character?"+url.Values{"key": keys}.Encode())
	if a.StatusCode != 200 || len(a.body.Items) != len(keys) {
		t.Fatalf("got %d %s, want 200 with %d items", a.StatusCode, a.text, len(keys))
	}
	for i, it := range a.body.Items {
		want := 400
		if keys[i] == "a" {
			want = 200
		}
		if it.Status != want {
			t.Errorf("key %q: got status %d, want %d", keys[i], it.Status, want)
		}
		if isBad := want == 400; isBad != (it.Refresh.Reason == "BAD_KEY") || isBad != (it.Detail != "") || isBad != (it.Snapshot == nil) {
			t.Errorf("key %q: got %+v, want BAD_KEY and a detail only with status 400, a snapshot only with 200", keys[i], it)
		}
	}
	if n := len(r.enqueued()); n != 0 {
		t.Errorf("got %d update requests, want 0", n)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=x"); a.StatusCode != 200 || a.body.Items[0].Status != 400 {
		t.Errorf("only an invalid key: got %d %s, want 200 with an item of status 400", a.StatusCode, a.text)
	}
}

// discardWriter is an http.ResponseWriter that discards the response.
type discardWriter struct{ h http.Header }

func (s *discardWriter) Header() http.Header         { return s.h }
func (s *discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (s *discardWriter) WriteHeader(int)             {}

func hotRead(tb testing.TB, as string, tracer observe.Tracer, change ...func(*rig)) func() {
	r := newRig(tb, change...)
	r.server.tracing.tracer = tracer
	r.putSnapshot("a", time.Minute)
	req := httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/v1/nexon/character/a", nil)
	req.Header.Set("Accept-Encoding", as)
	w := &discardWriter{http.Header{}}
	serve := func() {
		clear(w.h)
		r.server.ServeHTTP(w, req)
	}
	serve()
	if w.h.Get("Etag") == "" {
		tb.Fatalf("headers: got %v, want an ETag", w.h)
	}
	return serve
}

func BenchmarkHotRead(b *testing.B) {
	for _, as := range []string{"zstd", "gzip", "identity"} {
		b.Run(as, func(b *testing.B) {
			serve := hotRead(b, as, observe.Tracer{})
			b.ReportAllocs()
			for b.Loop() {
				serve()
			}
		})
	}
}

// BenchmarkHotReadCounted measures how much time the counting of reads adds to a cache hit. It
// measures in turn without counting and with counting, each several times.
func BenchmarkHotReadCounted(b *testing.B) {
	const turn = 1000
	serve := []func(){
		hotRead(b, "zstd", observe.Tracer{}),
		hotRead(b, "zstd", observe.Tracer{}, func(r *rig) { r.reads = &fakeRecorder{} }),
	}
	var took [2]time.Duration
	turns := 0
	for b.Loop() {
		for i := range serve {
			which := (i + turns) % 2 // the order alternates, so that a change of the machine's speed affects both kinds of rounds
			began := time.Now()
			for range turn {
				serve[which]()
			}
			took[which] += time.Since(began)
		}
		turns++
	}
	for i, name := range []string{"uncounted", "counted"} {
		b.ReportMetric(float64(took[i].Nanoseconds())/float64(turns*turn), "ns/"+name)
		b.ReportMetric(testing.AllocsPerRun(turn, serve[i]), "allocs/"+name)
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "counted/uncounted")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHotReadTraced measures how much time tracing spans add to a cache hit. A cache hit is the
// fastest read, so spans are the largest share of its time.
func BenchmarkHotReadTraced(b *testing.B) {
	for name, tracer := range map[string]observe.Tracer{
		"off":      {},
		"not-kept": observe.NewTracer(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))),
		"kept":     observe.NewTracer(sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter()))),
	} {
		b.Run(name, func(b *testing.B) {
			serve := hotRead(b, "zstd", tracer)
			b.ReportAllocs()
			for b.Loop() {
				serve()
			}
		})
	}
}
