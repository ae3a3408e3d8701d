package client

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestGet_ReturnsRawContent(t *testing.T) {
	const layout = "<w2:a/>"
	n := 0
	c := newTestClient(t, &service{answer: func(_ int, r *http.Request, w http.ResponseWriter) {
		if n++; r.Header.Get("If-None-Match") == `"a-gzip"` {
			write(w, 304, "", "ETag", `"a-gzip"`, "Cache-Control", "no-cache", "Freshet-Degraded", "STORE_UNAVAILABLE")
			return
		}
		write(w, 200, layout, "ETag", `"a-gzip"`, "Content-Type", "application/xml", "Cache-Control", "public, max-age=31536000, immutable", "Last-Modified", "Fri, 20 Nov 2026 20:37:53 GMT")
	}}, Options{})
	first, err := c.Get(t.Context(), anEntity)
	if err != nil || string(first.Snapshot) != layout || first.MediaType != "application/xml" || first.Freshness != Fresh || first.ETag != `"a-gzip"` {
		t.Errorf("got %+v, %v, want the layout as application/xml, FRESH, with its ETag", first, err)
	}
	if want := time.Date(2026, 11, 20, 20, 37, 53, 0, time.UTC); !first.LastUpdatedAt.Equal(want) {
		t.Errorf("got the time of the last change %v, want %v", first.LastUpdatedAt, want)
	}
	again, err := c.Get(t.Context(), anEntity)
	if err != nil || string(again.Snapshot) != layout || again.MediaType != "application/xml" || again.Degraded != "STORE_UNAVAILABLE" || n != 2 {
		t.Errorf("conditional read: got %+v, %v, want the same content, degraded by STORE_UNAVAILABLE", again, err)
	}
	if _, err := GetAs[map[string]any](t.Context(), c, anEntity); err == nil || !strings.Contains(err.Error(), "read it with Get") {
		t.Errorf("GetAs: got %v, want an error that names Get", err)
	}
}

func TestGet_RawJSONHasAStrongTag(t *testing.T) {
	raw := newTestClient(t, always(200, `{"a":1}`, "ETag", `"a"`, "Content-Type", "application/json"), Options{})
	if got, err := raw.Get(t.Context(), anEntity); err != nil || string(got.Snapshot) != `{"a":1}` || got.MediaType != "application/json" {
		t.Errorf("raw JSON: got %+v, %v, want the bytes and the media type application/json", got, err)
	}
	degraded := newTestClient(t, always(200, freshBody, "ETag", `W/"a"`, "Content-Type", "application/json", "Freshet-Degraded", "UPSTREAM_DOWN"), Options{})
	if got, err := degraded.Get(t.Context(), anEntity); err != nil || got.MediaType != "" || got.Degraded != "UPSTREAM_DOWN" {
		t.Errorf("JSON: got %+v, %v, want no media type, degraded by UPSTREAM_DOWN", got, err)
	}
}
