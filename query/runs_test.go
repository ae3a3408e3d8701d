package query

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/runs/api"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store/sqlite"
)

// runsRig is a query service with a database and the paths of runs.
type runsRig struct {
	*rig
	stored *runs.Runs
	config runs.Config
	now    time.Time
}

func newRunsRig(t *testing.T, paid bool) *runsRig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	rdb, _ := servicetest.MiniRedis(t)
	r := &runsRig{
		stored: runs.New(db), now: time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC),
		config: runs.Config{Steps: map[string]runs.StepConfig{"character": {}}, Parallel: 8, Deadline: time.Hour},
	}
	r.rig = newRig(t, func(base *rig) {
		base.runs = func(src *source.Source) Runs {
			return api.New(api.Deps{
				Store: db, Sources: map[string]*source.Source{"nexon": src}, Configs: map[string]map[string]runs.Config{"nexon": {"all": r.config}},
				Redis: rdb, Paid: paid, Now: func() time.Time { return r.now }, Log: slog.New(slog.DiscardHandler),
			})
		}
	})
	return r
}

// post sends a request with a body, and checks the response against the OpenAPI document.
func (r *runsRig) post(path, body string, headers ...string) (status int, run api.Run, text string) {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), http.MethodPost, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	openapitest.Check(r, openapitest.Exchange{Request: req, Body: body, Status: rec.Code, Header: rec.Header(), Response: rec.Body.String()})
	_ = json.Unmarshal(rec.Body.Bytes(), &run)
	return rec.Code, run, rec.Body.String()
}

func TestStartRun_StartsOneRunPerKey(t *testing.T) {
	r := newRunsRig(t, false)
	const path = "/v1/runs/nexon/all"
	status, first, text := r.post(path, `{"keys":["a","b"]}`, "Idempotency-Key", "k")
	if status != 202 || first.State != runs.Running || first.Steps.Open != 2 || first.TriggeredBy != "" {
		t.Fatalf("start: got %d %s, want 202 with a run of two steps", status, text)
	}
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		status     int
		code       problem.Code
	}{
		"repeated":         {path, `{"keys":["a","b"]}`, []string{"Idempotency-Key", "k"}, 200, ""},
		"the same keys":    {path, `{"keys":["b","a","a"]}`, nil, 200, ""},
		"another body":     {path, `{"keys":["c"]}`, []string{"Idempotency-Key", "k"}, 422, problem.IdempotencyKeyReused},
		"bad key header":   {path, `{"keys":["c"]}`, []string{"Idempotency-Key", "k k"}, 400, problem.BadRequest},
		"unknown source":   {"/v1/runs/other/all", `{"keys":["c"]}`, nil, 404, problem.NoSuchSource},
		"unknown name":     {"/v1/runs/nexon/other", `{"keys":["c"]}`, nil, 404, problem.NoSuchJob},
		"no body":          {path, ``, nil, 400, problem.BadBody},
		"unknown member":   {path, `{"key":"c"}`, nil, 400, problem.BadBody},
		"no key":           {path, `{"keys":[]}`, nil, 400, problem.BadKeys},
		"invalid key":      {path, `{"keys":["x"]}`, nil, 400, problem.BadKeys},
		"keys and prefix":  {path, `{"keys":["c"],"prefix":"c"}`, nil, 400, problem.BadKeys},
		"nothing selected": {path, `{"prefix":""}`, nil, 400, problem.BadKeys},
		"too large":        {path, `{"prefix":"` + strings.Repeat("a", api.MaxBodyBytes) + `"}`, nil, 413, problem.BodyTooLarge},
	} {
		status, run, text := r.post(c.path, c.body, c.headers...)
		if status != c.status || !strings.Contains(text, string(c.code)) || (c.status == 200 && run.ID != first.ID) {
			t.Errorf("%s: got %d %.300s, want %d %s", name, status, text, c.status, c.code)
		}
	}
}

func TestStartRun_NeedsAdminIfRefreshesCostCredits(t *testing.T) {
	r := newRunsRig(t, true)
	r.client = access.Client{Name: "key:1", Scopes: []access.Scope{access.Refresh}}
	if status, _, text := r.post("/v1/runs/nexon/all", `{"keys":["a"]}`); status != 403 {
		t.Errorf("refresh: got %d %s, want 403", status, text)
	}
	r.client.Scopes = []access.Scope{access.Admin}
	if status, _, text := r.post("/v1/runs/nexon/all", `{"keys":["a"]}`); status != 202 {
		t.Errorf("admin: got %d %s, want 202", status, text)
	}
}

func TestReadRun_WaitsForTheEnd(t *testing.T) {
	r := newRunsRig(t, false)
	_, run, _ := r.post("/v1/runs/nexon/all", `{"keys":["a"]}`)
	if a := r.do(http.MethodGet, "/v1/runs/"+run.ID+"?wait=10ms"); a.StatusCode != 200 || !strings.Contains(a.text, `"RUNNING"`) {
		t.Errorf("before the end: got %d %s, want 200 RUNNING", a.StatusCode, a.text)
	}
	got := make(chan answer, 1)
	go func() { got <- r.do(http.MethodGet, "/v1/runs/"+run.ID+"?wait=20s") }()
	servicetest.WaitFor(t, testTimeout, "the waiting request", func() bool { return r.server.waits.set.count.Load() == 1 })
	if _, err := r.stored.End(t.Context(), run.ID, []runs.StepEnd{{Number: 1, State: runs.StepDone}}, r.now); err != nil {
		t.Fatal(err)
	}
	r.server.onSettled(schemas.Settled{Entity: runs.SettledEntity("nexon", run.ID), Number: 1})
	if a := <-got; a.StatusCode != 200 || !strings.Contains(a.text, `"COMPLETED"`) {
		t.Errorf("at the end: got %d %s, want 200 COMPLETED", a.StatusCode, a.text)
	}
	if a := r.do(http.MethodGet, "/v1/runs/unknown"); a.StatusCode != 404 || a.body.Code != string(problem.NoSuchJob) {
		t.Errorf("unknown run: got %d %s, want 404 no-such-job", a.StatusCode, a.text)
	}
}

func TestFollowRun_StreamsUntilTheEnd(t *testing.T) {
	r := newRunsRig(t, false)
	_, run, _ := r.post("/v1/runs/nexon/all", `{"keys":["a","b"]}`)
	rec, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(done)
		r.server.ServeHTTP(rec, httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/v1/runs/"+run.ID+"/events", nil))
	}()
	servicetest.WaitFor(t, testTimeout, "the stream", func() bool { return r.server.waits.set.count.Load() == 1 })
	for number := 1; number <= 2; number++ {
		if _, err := r.stored.End(t.Context(), run.ID, []runs.StepEnd{{Number: number, State: runs.StepDone}}, r.now); err != nil {
			t.Fatal(err)
		}
		r.server.onSettled(schemas.Settled{Entity: runs.SettledEntity("nexon", run.ID), Number: 1})
	}
	<-done
	text := rec.Body.String()
	first, rest, _ := strings.Cut(text, "event: ")
	if !strings.HasPrefix(first, "retry: ") || !strings.HasPrefix(rest, "progress\n") || strings.Count(rest, "event: ended\n") != 1 || !strings.HasSuffix(rest, "\n\n") {
		t.Errorf("stream: got %q, want progress and one ended", text)
	}
}
