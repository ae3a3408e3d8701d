package consumer_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

func TestNotModified_UnsolicitedIsBadContent(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("ocid") == "good" {
			_, _ = w.Write([]byte("{}"))
			return
		}
		calls.Add(1)
		w.WriteHeader(http.StatusNotModified)
	})
	r.work(schemas.High)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilCommitted(schemas.High)
	if l := r.deadLetters(); len(l) != 1 || l[0].Reason != schemas.ParseError || calls.Load() != 2 {
		t.Errorf("calls and dead letters: got %d and %+v, want 2 and 1 PARSE_ERROR", calls.Load(), l)
	}
}

func TestNotModified_WithoutSnapshotIsFetchedInFull(t *testing.T) {
	r := newRig(t)
	var conditional, full atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		if req.Header.Get("If-None-Match") == `"v1"` {
			if conditional.Add(1) == 2 { // before the second "not modified" response, the test deletes the snapshot
				if err := r.db.Delete(context.Background(), entity("a")); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(http.StatusNotModified)
			return
		}
		full.Add(1)
		_, _ = w.Write([]byte(`{"x":1}`))
	}, func(c *source.Config) {
		f := c.Facets["character"]
		f.Conditional = true
		c.Facets = map[string]source.Facet{"character": f}
	})
	r.work(schemas.High)
	for round := range 3 {
		before, _ := r.snapshot("a")
		r.enqueue("a", schemas.High, schemas.UserRequest)
		r.until("a later check", func() bool { s, ok := r.snapshot("a"); return ok && s.Version > before.Version })
		r.untilCommitted(schemas.High)
		if s, _ := r.snapshot("a"); !s.HasContent() || s.ETag != `"v1"` {
			t.Errorf("round %d: got %+v, want content with the ETag %s", round, s.State, `"v1"`)
		}
	}
	if conditional.Load() != 2 || full.Load() != 2 || len(r.deadLetters()) != 0 {
		t.Errorf("conditional calls, full calls and dead letters: got %d, %d and %d, want 2, 2 and 0",
			conditional.Load(), full.Load(), len(r.deadLetters()))
	}
}

// A facet that becomes raw must fetch its content again: readers do not get the stored JSON, and a
// response "not modified" would keep it.
func TestNotModified_OtherMediaTypeIsFetchedInFull(t *testing.T) {
	r := newRig(t)
	var conditional atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		if req.Header.Get("If-None-Match") == `"v1"` {
			conditional.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write([]byte("<a/>"))
	}, func(c *source.Config) {
		f := c.Facets["character"]
		f.Conditional, f.Raw, f.Select, f.Ignore = true, &source.Raw{MediaType: "application/xml", WellFormed: "xml"}, nil, nil
		c.Facets = map[string]source.Facet{"character": f}
	})
	_, err := r.db.Write(t.Context(), []store.Write{{
		Entity: entity("a"), Version: 1, CheckedAt: time.Now().Add(-time.Hour), Hash: store.Hash{1}, ETag: `"v1"`,
		Payload: func() (store.Payload, error) { return store.Encode([]byte(`{"doc":{}}`)), nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.work(schemas.High)
	for want := range 2 {
		before, _ := r.snapshot("a")
		r.enqueue("a", schemas.High, schemas.UserRequest)
		r.until("a later check", func() bool { s, ok := r.snapshot("a"); return ok && s.Version > before.Version })
		r.untilCommitted(schemas.High)
		s, _ := r.snapshot("a")
		if text, err := s.Decode(nil); err != nil || string(text) != "<a/>" || s.MediaType != "application/xml" || conditional.Load() != int64(want) {
			t.Errorf("got %q as %q, %v, %d conditional calls, want <a/> as XML and %d", text, s.MediaType, err, conditional.Load(), want)
		}
	}
}
