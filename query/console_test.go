package query

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// withConsole adds a console to the query service of the test.
func withConsole(serve http.HandlerFunc) func(*rig) {
	return func(r *rig) { r.console = serve }
}

func TestConsole_GetsTheRequestWithoutAuthentication(t *testing.T) {
	r := newRig(t, withConsole(echoRequest))
	r.client = access.Client{}
	r.refused = problem.New(http.StatusUnauthorized, problem.TokenMissing, "Nobody may.")
	for _, call := range []string{"GET /console", "GET /console/", "POST /console/x/a%2Fb", "HEAD /console/x"} {
		method, path, _ := strings.Cut(call, " ")
		a := r.do(method, path+"?x=y")
		if a.text != call || a.StatusCode != 200 || a.Header.Get("X-Correlation-Id") == "" {
			t.Errorf("%s: got %d %s, want 200", call, a.StatusCode, a.text)
		}
	}
	if a := r.do(http.MethodGet, "/consolex"); a.StatusCode != 404 || a.body.Code != "no-such-path" {
		t.Errorf("beside it: got %d %s, want 404 no-such-path", a.StatusCode, a.text)
	}
	if len(r.limiterCalls) > 0 {
		t.Errorf("counts of the limiter: got %v, want none", r.limiterCalls)
	}
}

func TestConsole_IsOptional(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/console", "/console/", "/console/x"} {
		if a := r.do(http.MethodGet, path); a.StatusCode != 404 || a.body.Code != "no-such-path" {
			t.Errorf("%s: got %d %s, want 404 no-such-path", path, a.StatusCode, a.text)
		}
	}
}

func TestConsole_GetsTheAddressBehindKnownProxies(t *testing.T) {
	recorded := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }
	for proxies, want := range map[string]string{"": "192.0.2.1:1234", "192.0.2.0/24": "198.51.100.7:1234"} {
		r := newRig(t, withConsole(recorded), func(r *rig) { r.config.Proxies = strings.Fields(proxies) })
		if a := r.do(http.MethodGet, "/console", "X-Forwarded-For", "198.51.100.7"); a.text != want {
			t.Errorf("with the proxies %q: got %s, want %s", proxies, a.text, want)
		}
	}
}

func TestConsole_PanicEndsOnlyItsRequest(t *testing.T) {
	r := newRig(t, withConsole(func(http.ResponseWriter, *http.Request) { panic("a bug") }))
	if a := r.do(http.MethodGet, "/console/x"); a.StatusCode != 500 || a.body.Code != "internal" {
		t.Errorf("got %d %s, want 500 internal", a.StatusCode, a.text)
	}
}

func TestConsole_ShutdownEndsStreamsOnly(t *testing.T) {
	begun, finish := make(chan string, 2), make(chan struct{})
	r := newRig(t, withConsole(func(w http.ResponseWriter, req *http.Request) {
		begun <- req.URL.Path
		select {
		case <-req.Context().Done():
			_, _ = io.WriteString(w, "left")
		case <-finish:
			_, _ = io.WriteString(w, "finished")
		}
	}))
	stream, page := make(chan answer, 1), make(chan answer, 1)
	go func() { stream <- r.do(http.MethodGet, "/console/live/jobs/1") }()
	go func() { page <- r.do(http.MethodPost, "/console/act", "Accept", "text/event-stream") }()
	<-begun
	<-begun
	close(r.server.waits.set.stopping)
	select {
	case a := <-stream:
		if a.text != "left" {
			t.Errorf("stream: got %s, want left", a.text)
		}
	case <-time.After(testTimeout):
		t.Fatal("the stream delays the shutdown")
	}
	close(finish)
	if a := <-page; a.text != "finished" {
		t.Errorf("request in flight: got %s, want finished", a.text)
	}
	if n := testutil.CollectAndCount(r.server.metrics.requests); n != 2 {
		t.Errorf("got %d series, want 2", n)
	}
	for _, route := range []string{"/console/*?wait", "/console/*"} {
		method := map[bool]string{true: http.MethodGet, false: http.MethodPost}[strings.HasSuffix(route, "wait")]
		if !r.server.metrics.requests.DeleteLabelValues(route, method, "200") {
			t.Errorf("count of %s: got none, want one", route)
		}
	}
}

func TestRefresh_OfTheConsoleHasFloorAndCooldown(t *testing.T) {
	var server *Server
	var got EnqueueResult
	f := source.Facet{Cooldown: 17 * time.Second}
	someone, operator := access.Client{Name: "key:1 someone"}, access.Client{Scopes: []access.Scope{access.Admin}}
	r := newRig(t, withConsole(func(_ http.ResponseWriter, req *http.Request) {
		got = server.Refresh(req.Context(), someone, []schemas.Entity{entity("a")}, f)[0]
	}))
	server = r.server
	r.client = access.Client{}
	r.putSnapshot("a", 0)
	r.do(http.MethodPost, "/console/refresh", "X-Correlation-Id", "abc")
	want := UpdateRequest{Entity: entity("a"), Reason: schemas.UserRequest, Floor: 7, Cooldown: 17 * time.Second, CorrelationID: "abc", Client: someone.ID()}
	if all := r.enqueued(); len(all) != 1 || all[0] != want || !got.Queued {
		t.Errorf("update requests: got %+v with the result %+v, want %+v, queued", all, got, want)
	}
	for _, what := range r.limiterCalls {
		if strings.HasPrefix(what, "begin") {
			t.Errorf("counts of the limiter: got %s, want no begin", what)
		}
	}

	r.set(func() { r.storeErr = fmt.Errorf("the database is unavailable") })
	if a := server.Refresh(t.Context(), operator, []schemas.Entity{entity("b")}, f)[0]; !a.Queued || r.enqueued()[1].Floor != 0 {
		t.Errorf("refresh without the database: got %+v, want it queued with the floor 0", a)
	}
	r.set(func() {
		r.enqueueAndWait = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Pending: true} }
	})
	if a := server.Refresh(t.Context(), operator, []schemas.Entity{entity("b")}, f)[0]; !a.Pending || a.Queued {
		t.Errorf("uncertain refresh: got %+v, want it pending and not queued", a)
	}
}
