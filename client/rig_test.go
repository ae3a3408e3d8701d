package client

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

const aToken = "a-token-that-must-not-be-shown"

var anEntity = Entity{"nexon", "character", "somebody"}

// service is a query service without a network, so that tests can use synctest.
type service struct {
	mu       sync.Mutex
	requests []*http.Request
	answer   func(n int, r *http.Request, w http.ResponseWriter) // answer writes the response to request n; n counts from 1
}

func (s *service) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	n := len(s.requests)
	s.mu.Unlock()
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	s.answer(n, r, w)
	return w.Result(), nil
}

func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func (s *service) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[len(s.requests)-1]
}

func newTestClient(t *testing.T, s http.RoundTripper, o Options) *Client {
	t.Helper()
	o.Transport = s
	c, err := New("http://freshet.example", o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// always returns a service that sends the same response to each request.
func always(status int, body string, header ...string) *service {
	return &service{answer: func(_ int, _ *http.Request, w http.ResponseWriter) { write(w, status, body, header...) }}
}

func write(w http.ResponseWriter, status int, body string, header ...string) {
	for i := 0; i < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// problemBody returns a problem as the service sends it.
func problemBody(status int, code string) string {
	return fmt.Sprintf(`{"type":"urn:freshet:problem:%s","title":"t","status":%d,"detail":"some detail","code":%q}`, code, status, code)
}

const freshBody = `{"snapshot":{"basic":{"level":7}},"freshness":"FRESH","lastUpdatedAt":"2026-11-20T20:37:53.5Z","lastCheckedAt":"2026-11-20T20:38:00Z"}`

func bearer(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

func expired(w http.ResponseWriter) { write(w, 401, problemBody(401, "token-expired")) }
