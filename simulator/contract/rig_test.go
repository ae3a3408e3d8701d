package contract

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// rig is an upstream in a bubble of testing/synctest. The clock of a bubble advances only while all
// goroutines wait.
type rig struct {
	*testing.T
	u *Upstream
}

func run(t *testing.T, name string, o Options, scene func(t *testing.T, r rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		u, err := New(name, o)
		if err != nil {
			t.Fatal(err)
		}
		scene(t, rig{t, u})
	})
}

// sleep advances the clock of the testing/synctest bubble by d.
func sleep(d time.Duration) { <-time.After(d) }

// response is a recorded response with canonical header names.
type response struct {
	status int
	header http.Header
	body   string
}

func (a response) check(t *testing.T, status int, parts ...string) {
	t.Helper()
	if a.status != status {
		t.Fatalf("got status %d, want %d: %s", a.status, status, a.body)
	}
	for _, part := range parts {
		if !strings.Contains(a.body, part) {
			t.Fatalf("body does not contain %s: %s", part, a.body)
		}
	}
}

func (a response) checkHeader(t *testing.T, name, want string) {
	t.Helper()
	if got := strings.Join(a.header.Values(name), "|"); got != want {
		t.Fatalf("header %s: got %q, want %q", name, got, want)
	}
}

// newRequest returns a request for a method and path such as "GET /path". A line that begins with
// "{" is the body. Every other line is a header, "Name: value".
func newRequest(what string, lines ...string) *http.Request {
	method, path, _ := strings.Cut(what, " ")
	var body io.Reader
	var headers []string
	for _, line := range lines {
		if strings.HasPrefix(line, "{") {
			body = strings.NewReader(line)
		} else {
			headers = append(headers, line)
		}
	}
	r := httptest.NewRequest(method, "http://kr.api.example"+path, body)
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func (r rig) do(q *http.Request) response {
	rec := httptest.NewRecorder()
	r.u.ServeHTTP(rec, q)
	got := rec.Result()
	a := response{got.StatusCode, http.Header{}, rec.Body.String()}
	for name, values := range got.Header {
		for _, v := range values {
			a.header.Add(name, v)
		}
	}
	return a
}

// acceptAll makes n calls and fails the test if one is refused.
func (r rig) acceptAll(n int, call func() *http.Request) {
	r.Helper()
	for i := range n {
		a := r.do(call())
		if len(r.u.refusals) > 0 { // read the field, because Stats would read the whole log
			r.Fatalf("call %d of %d was refused: %d %s, %v", i+1, n, a.status, a.body, r.u.violations)
		}
	}
}

// policy returns the statistics of a policy that has a single scope.
func (r rig) policy(name string) PolicyStats {
	r.Helper()
	for _, p := range r.u.Stats().Policies {
		if p.Name == name {
			return p
		}
	}
	r.Fatalf("no policy %q in %+v", name, r.u.Stats().Policies)
	return PolicyStats{}
}
