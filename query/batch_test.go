package query

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func TestBatch_LargeDocumentsAreTheSameInEachEncoding(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.Memory = 64 << 20 })
	r.putSnapshot("large", time.Minute, withPayload(largeStored))
	r.putSnapshot("dense", 2*time.Hour, withPayload(denseStored))
	r.putSnapshot("small", time.Minute)
	r.putSnapshot("broken", time.Minute, func(s *store.Snapshot) { s.Payload, s.Size = []byte("?"), 1<<20 })
	const path = "/v1/nexon/character?key=large&key=dense&key=broken&key=new&key=small&key=large"
	for range 2 { // in the second round the cache has the encoded bodies; the responses must be the same
		for as, broken := range map[string]int{"identity": 500, "gzip": 500} {
			a := r.do(http.MethodGet, path, "Accept-Encoding", as)
			if a.StatusCode != 200 || len(a.body.Items) != 6 {
				t.Fatalf("%s: got %d with %d items, want 200", as, a.StatusCode, len(a.body.Items))
			}
			for i, want := range []struct{ status, size int }{{200, largeStored.Size}, {200, denseStored.Size}, {broken, 0}, {202, 0}, {200, len(content)}, {200, largeStored.Size}} {
				if got := a.body.Items[i]; got.Status != want.status || len(got.Snapshot) != want.size {
					t.Errorf("%s, item %d: got status %d and %d bytes, want %+v", as, i, got.Status, len(got.Snapshot), want)
				}
			}
		}
	}
	if r.server.entryOf("large").bodies[identity].made.Load() {
		t.Error("a batch has left an unpacked document of 1 MB in memory")
	}
}

// serveBatch returns a function that reads a batch with n times the same key, in the content encoding
// `as` (such as gzip). `p` is the stored content of the key.
func serveBatch(tb testing.TB, n int, as string, p store.Payload) func() {
	r := newRig(tb, func(r *rig) { r.config.Memory = 64 << 20 })
	r.putSnapshot("a", time.Minute, withPayload(p))
	req := httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/v1/nexon/character?"+strings.TrimSuffix(strings.Repeat("key=a&", n), "&"), nil)
	req.Header.Set("Accept-Encoding", as)
	w := &discardWriter{http.Header{}}
	return func() {
		clear(w.h)
		r.server.ServeHTTP(w, req)
	}
}

// BenchmarkBatch measures a batch of 100 documents, once with 1 MB each and once with 18 kB each.
func BenchmarkBatch(b *testing.B) {
	medium := store.Encode([]byte(`{"d":[` + strings.TrimSuffix(large[:18_000], ",") + `]}`))
	for name, p := range map[string]store.Payload{"1MB": largeStored, "18kB": medium} {
		for _, as := range []string{"zstd", "gzip", "identity"} {
			b.Run(name+"/"+as, func(b *testing.B) {
				serve := serveBatch(b, 100, as, p)
				serve()
				b.ReportAllocs()
				for b.Loop() {
					serve()
				}
			})
		}
	}
}

// A response counts as several requests of its client if its document must be compressed or
// unpacked. It counts as one request if the cache has the document in the requested encoding.
func TestRequests_CountTheCostOfAResponse(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.Memory = 64 << 20 })
	r.putSnapshot("a", time.Minute, withPayload(largeStored)) // the decompressed content has 1 MB
	one, batch := "/v1/nexon/character/a", "/v1/nexon/character?key=a&key=a"
	for i, c := range []struct{ path, as, want string }{
		{one, "zstd", "1"},
		{one, "gzip", "1 61"},
		{one, "gzip", "1"},
		{batch, "gzip", "1 1 122"},    // a gzip batch is compressed as a whole, so each of its two documents of 1 MB counts as 61 extra requests
		{batch, "identity", "1 1 30"}, // this batch and the next one count as 30 extra requests each, because a batch does not cache an unpacked document of 1 MB
		{batch, "identity", "1 1 30"},
		{one, "identity", "1 15"},
		{one, "identity", "1"},
		{batch, "zstd", "1 1"},
	} {
		r.set(func() { r.limiterCalls = nil })
		if a := r.do(http.MethodGet, c.path, "Accept-Encoding", c.as); a.StatusCode != 200 {
			t.Fatalf("%d: %s as %s: got %d, want 200", i, c.path, c.as, a.StatusCode)
		}
		var got []string
		for _, limiterCalls := range r.limiterCalls {
			if n, ok := strings.CutPrefix(limiterCalls, "requests "+everything.Name+" "); ok {
				got = append(got, n)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%d: %s as %s: got %v counted requests, want %s", i, c.path, c.as, got, c.want)
		}
	}
}
