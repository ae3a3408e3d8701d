package client

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/problem"
)

const runBody = `{"id":"r1","source":"github","name":"profile","scope":"octocat","keys":1,"state":"RUNNING","attempt":1,"steps":{"total":2,"open":2},"createdAt":"2026-11-26T10:00:00Z","startedAt":"2026-11-26T10:00:00Z","deadline":"2026-11-27T10:00:00Z","endedAt":null}`

func TestStartRun_SendsKeysAndOneIdempotencyKey(t *testing.T) {
	var bodies, keys []string
	s := &service{answer: func(n int, r *http.Request, w http.ResponseWriter) {
		body, _ := io.ReadAll(r.Body)
		bodies, keys = append(bodies, string(body)), append(keys, r.Header.Get("Idempotency-Key"))
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		write(w, 202, runBody)
	}}
	synctest.Test(t, func(t *testing.T) {
		run, started, err := newTestClient(t, s, Options{MaxRetries: 1}).StartRun(t.Context(), "github", "profile", RunKeys{Keys: []string{"octocat"}}, "")
		if err != nil || !started || run.ID != "r1" || run.Steps.Open != 2 || !run.EndedAt.IsZero() {
			t.Errorf("got %+v, started %t, %v; want the active run r1", run, started, err)
		}
	})
	if got := s.last().URL.Path; got != "/v1/runs/github/profile" {
		t.Errorf("path: got %s, want /v1/runs/github/profile", got)
	}
	if !slices.Equal(bodies, []string{`{"keys":["octocat"]}`, `{"keys":["octocat"]}`}) || len(keys) != 2 || keys[0] != keys[1] || keys[0] == "" {
		t.Errorf("got bodies %q with the keys %q, want the same body and key twice", bodies, keys)
	}
}

func TestStartRun_ReturnsAnEarlierRunAndProblems(t *testing.T) {
	if run, started, err := newTestClient(t, always(200, runBody), Options{}).StartRun(t.Context(), "github", "profile", RunKeys{}, "k"); err != nil || started || run.ID != "r1" {
		t.Errorf("200: got %+v, started %t, %v; want the earlier run", run, started, err)
	}
	_, _, err := newTestClient(t, always(422, problemBody(422, "idempotency-key-reused")), Options{}).StartRun(t.Context(), "github", "profile", RunKeys{}, "k")
	if p, ok := errors.AsType[*Problem](err); !ok || p.Code != problem.IdempotencyKeyReused {
		t.Errorf("422: got %v, want the problem", err)
	}
	if _, _, err := newTestClient(t, always(202, runBody), Options{}).StartRun(t.Context(), "github", "profile", RunKeys{Keys: []string{"a"}, Prefix: "b"}, ""); err == nil {
		t.Error("keys and a prefix: got no error, want one")
	}
}

func TestWaitRun_WaitsForTheEnd(t *testing.T) {
	ended := `{"id":"r1","state":"FAILED","steps":{"total":2,"failed":2},"endedAt":"2026-11-26T11:00:00Z"}`
	s := &service{answer: func(n int, r *http.Request, w http.ResponseWriter) {
		if got := r.Header.Get("Prefer"); got != "wait=30" {
			t.Errorf("Prefer: got %q, want wait=30", got)
		}
		if n < 3 {
			write(w, 200, runBody)
			return
		}
		write(w, 200, ended)
	}}
	synctest.Test(t, func(t *testing.T) {
		seen, began := 0, time.Now()
		run, err := newTestClient(t, s, Options{}).WaitRun(t.Context(), "r1", func(Run) { seen++ })
		if err != nil || run.State != RunFailed || seen != 3 {
			t.Errorf("got %+v, %v after %d states, want the failed run after 3", run, err, seen)
		}
		if took := time.Since(began); took < 2*time.Second { // if a service responds at once, the client must pause before its next request
			t.Errorf("time of 3 requests: got %v, want at least 2s", took)
		}
	})
}
