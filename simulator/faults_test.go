package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFault_ErrorsMatchRealAPI(t *testing.T) {
	want := map[Kind]struct {
		status int
		name   string
	}{
		TooManyRequests: {429, "OPENAPI00007"},
		InternalError:   {500, "OPENAPI00001"},
		Maintenance:     {503, "OPENAPI00011"},
		GameMaintenance: {400, "OPENAPI00010"},
		NotReady:        {400, "OPENAPI00009"},
		NotFound:        {400, "OPENAPI00003"},
		BadParameter:    {400, "OPENAPI00004"},
		BadKey:          {400, "OPENAPI00005"},
		Forbidden:       {403, "OPENAPI00002"},
	}
	if len(want) != len(errorKinds) {
		t.Errorf("got %d tested kinds of %d", len(want), len(errorKinds))
	}
	s := New(Config{})
	for kind, w := range want {
		control(t, s, fmt.Sprintf(`{"faults": [{"kind": %q}]}`, kind))
		got := get(t, s, equipment+"a", "Accept-Encoding", "gzip")
		if got.Code != w.status || errorName(t, got.Body.Bytes()) != w.name || got.Header().Get("Retry-After") != "" {
			t.Errorf("%s: got %d %s", kind, got.Code, got.Body)
		}
	}
	control(t, s, `{"faults": [{"kind": "429", "retryAfter": "1.5"}]}`)
	if h := get(t, s, equipment+"a").Header(); h.Get("Retry-After") != "1.5" {
		t.Errorf("got headers %v", h)
	}
	control(t, s, `{"faults": []}`)
	if w := get(t, s, equipment+"a"); w.Code != 200 {
		t.Errorf("rules not removed: got status %d", w.Code)
	}
	if st := s.Stats(); st.Refused != 0 || st.ByStatus[429] != 2 {
		t.Errorf("a 429 by a fault counts as refused: %+v", st)
	}
}

func TestFault_MatchesPathKeyAndCount(t *testing.T) {
	s := New(Config{})
	status := func(target string) int { return get(t, s, target).Code }
	control(t, s, `{"faults": [
		{"kind": "500", "path": "basic$", "key": "^a"},
		{"kind": "503-maintenance", "key": "^b", "count": 2},
		{"kind": "forbidden", "key": "^[bc]$", "percent": 100},
		{"kind": "429", "percent": 0}]}`)
	for _, c := range []struct {
		path, key string
		want      int
	}{
		{"character/basic", "a", 500},
		{"character/stat", "a", 200},
		{"character/basic", "xa", 200},
		{"character/stat", "b", 503},
		{"character/stat", "c", 403},
		{"character/stat", "b2", 503},
		{"character/stat", "b", 403}, // the rule with 503 has affected its Count of 2 calls, so the rule with 403 applies
		{"character/stat", "b2", 200},
		{"character/none", "c", 403},
	} {
		if got := status(base + c.path + "?ocid=" + c.key); got != c.want {
			t.Errorf("%s of %s: got %d, want %d", c.path, c.key, got, c.want)
		}
	}
	control(t, s, `{"faults": [{"kind": "500", "percent": 30}]}`)
	const n = 4000
	for range n {
		status("/maplestory/v1/id?character_name=a")
	}
	if hit := s.Stats().ByStatus[500] - 1; hit < n*26/100 || hit > n*34/100 {
		t.Errorf("30 %%: got %d of %d", hit, n)
	}
}

func TestFault_HTML200(t *testing.T) {
	s := New(Config{})
	control(t, s, `{"faults": [{"kind": "html-200"}]}`)
	w := get(t, s, equipment+"a")
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || !strings.HasPrefix(w.Body.String(), "<!DOCTYPE html>") {
		t.Errorf("got %d %v %.40s", w.Code, w.Header(), w.Body)
	}
}

func TestFault_BadJSON(t *testing.T) {
	s := New(Config{})
	whole := get(t, s, equipment+"a").Body.String()
	control(t, s, `{"faults": [{"kind": "bad-json"}]}`)
	w := get(t, s, equipment+"a", "Accept-Encoding", "gzip")
	if body := w.Body.String(); w.Code != 200 || json.Valid([]byte(body)) || !strings.HasPrefix(whole, body) || len(body) < 100_000 {
		t.Errorf("got status %d and %d bytes", w.Code, len(body))
	}
}

func TestFault_OversizeHasExactLength(t *testing.T) {
	s := New(Config{})
	for _, size := range []int{14, 15, 1000, paddingLength + 13, paddingLength + 14, paddingLength + 15, 5_000_123} {
		control(t, s, fmt.Sprintf(`{"faults": [{"kind": "oversize", "bytes": %d}]}`, size))
		plain := get(t, s, equipment+"a").Body.Bytes()
		if len(plain) != size || !json.Valid(plain) {
			t.Errorf("%d bytes requested: got %d, valid %v", size, len(plain), json.Valid(plain))
		}
		zipped := get(t, s, equipment+"a", "Accept-Encoding", "gzip").Body
		if n := zipped.Len(); n > 200+size/300 {
			t.Errorf("%d bytes: got %d compressed", size, n)
		}
		if !bytes.Equal(gunzip(t, zipped), plain) {
			t.Errorf("%d bytes: compressed body differs", size)
		}
	}
}

func TestFault_OversizeStopsWithClient(t *testing.T) {
	for _, fault := range []string{`{"kind": "oversize", "bytes": 1000000000000000}`, `{"kind": "deep", "depth": 1000000000000000}`} {
		s := New(Config{})
		control(t, s, `{"faults": [`+fault+`]}`)
		server := httptest.NewServer(s)
		resp := do(t, server, equipment+"a")
		if _, err := io.CopyN(io.Discard, resp.Body, 3<<20); err != nil {
			t.Error(err)
		}
		_ = resp.Body.Close()
		server.Close() // Close returns only after the handler has returned
	}
}

func TestFault_DeepHasExactDepth(t *testing.T) {
	s := New(Config{})
	for _, depth := range []int{1, 10_001, 200_000} {
		control(t, s, fmt.Sprintf(`{"faults": [{"kind": "deep", "depth": %d}]}`, depth))
		if w := get(t, s, equipment+"a"); w.Code != 200 || w.Body.String() != strings.Repeat("[", depth)+strings.Repeat("]", depth) {
			t.Errorf("depth %d: got status %d and %d bytes", depth, w.Code, w.Body.Len())
		}
	}
}

// do sends one request over a real connection and does not follow redirects.
func do(t *testing.T, server *httptest.Server, target string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestFault_ResetClosesDuringBody(t *testing.T) {
	for _, identity := range []bool{false, true} {
		s := New(Config{Identity: identity})
		control(t, s, `{"faults": [{"kind": "reset"}]}`)
		server := httptest.NewServer(s)
		resp := do(t, server, equipment+"a")
		n, err := io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || n == 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("identity %v: got status %d, %d bytes, error %v", identity, resp.StatusCode, n, err)
		}
		server.Close()
		if st := s.Stats(); st.InFlight != 0 || st.ByStatus[200] != 1 {
			t.Errorf("got stats %+v", st)
		}
	}
}

func TestFault_RedirectSetsLocation(t *testing.T) {
	s := New(Config{})
	control(t, s, `{"faults": [{"kind": "redirect", "location": "http://elsewhere.example/x", "count": 1}]}`)
	server := httptest.NewServer(s)
	defer server.Close()
	resp := do(t, server, equipment+"a")
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "http://elsewhere.example/x" || s.Stats().Arrivals != 1 {
		t.Errorf("got %d with headers %v", resp.StatusCode, resp.Header)
	}
}

func TestFault_SlowBodyIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		want := get(t, s, equipment+"a").Body.Bytes()
		control(t, s, `{"faults": [{"kind": "slow-body"}]}`)
		began := time.Now()
		w := get(t, s, equipment+"a", "Accept-Encoding", "gzip")
		if took := time.Since(began); took != slowBodyPieces*slowBodyPause || !w.Flushed {
			t.Errorf("got a response after %v, flushed %v", took, w.Flushed)
		}
		if !bytes.Equal(gunzip(t, w.Body), want) {
			t.Error("got another body")
		}
	})
}

func TestFault_CountsAgainstQuota(t *testing.T) {
	s := New(Config{Limits: []Limit{{2, time.Hour}}})
	control(t, s, `{"faults": [{"kind": "500", "count": 2}]}`)
	for i, want := range []int{500, 500, 429} {
		if w := get(t, s, equipment+"a"); w.Code != want {
			t.Errorf("call %d: got %d, want %d", i, w.Code, want)
		}
	}
}
