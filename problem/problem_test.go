package problem

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestWrite_HasHeadersAndBody(t *testing.T) {
	p := New(http.StatusTooManyRequests, Cooldown, "A moment ago.")
	p.After = 1200 * time.Millisecond
	p.Header = http.Header{"Ratelimit": {"x"}}
	for method, bodied := range map[string]bool{http.MethodGet: true, http.MethodHead: false} {
		w := httptest.NewRecorder()
		if err := p.Write(w, httptest.NewRequestWithContext(t.Context(), method, "/", nil)); err != nil {
			t.Fatal(err)
		}
		h := w.Header()
		if w.Code != 429 || h.Get("Content-Type") != ContentType || h.Get("Cache-Control") != "no-store" || h.Get("Retry-After") != "2" || h.Get("RateLimit") != "x" {
			t.Errorf("%s: got %d %v", method, w.Code, h)
		}
		if (w.Body.Len() > 0) != bodied {
			t.Errorf("%s: got %d bytes", method, w.Body.Len())
		}
		if !bodied {
			continue
		}
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if len(got) != 5 || got["code"] != "cooldown" || got["status"] != 429.0 || got["title"] != "Too Many Requests" ||
			got["type"] != "urn:freshet:problem:cooldown" || got["detail"] != "A moment ago." {
			t.Errorf("got %v", got)
		}
	}
}

func TestBody_TooLargeIs413(t *testing.T) {
	if p := Body(&http.MaxBytesError{Limit: 5}); p.Status != 413 || p.Code != "body-too-large" {
		t.Errorf("got %v, want 413 body-too-large", p)
	}
	if p := Body(errors.New("no object")); p.Status != 400 || p.Detail != "no object" {
		t.Errorf("got %v, want 400 with the detail", p)
	}
}
