package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

type rig struct {
	*testing.T
	service *Service
	stored  *runs.Runs
	db      *sqlite.Store
	now     time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	c := source.DefaultConfig()
	c.BaseURL = "http://127.0.0.1:1"
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
	c.Facets = map[string]source.Facet{"user": f}
	src, err := source.New("github", c, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	rdb, _ := servicetest.MiniRedis(t)
	r := &rig{T: t, db: db, stored: runs.New(db), now: time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)}
	config := runs.Config{Steps: map[string]runs.StepConfig{"user": {}}, Parallel: 8, Deadline: time.Hour}
	r.service = New(Deps{
		Store: db, Sources: map[string]*source.Source{"github": src}, Configs: map[string]map[string]runs.Config{"github": {"all": config}}, Redis: rdb,
		Actor: func(*http.Request) string { return "key:operator" }, Now: func() time.Time { return r.now }, Log: slog.New(slog.DiscardHandler),
	})
	return r
}

func (r *rig) start(keys ...string) Run {
	r.Helper()
	body, _ := json.Marshal(map[string]any{"keys": keys})
	run, started, err := r.service.Start(r.Context(), access.Client{Name: "key:a", Scopes: []access.Scope{access.Refresh}}, "github", "all", "", body)
	if err != nil || !started {
		r.Fatalf("got started %t, %v; want a new run", started, err)
	}
	return run
}

// call sends a request to the admin API, and checks the response against the OpenAPI document.
func (r *rig) call(method, path string, into any) (status int, text string) {
	r.Helper()
	req := httptest.NewRequestWithContext(context.Background(), method, path, nil)
	rec := httptest.NewRecorder()
	r.service.Handler().ServeHTTP(rec, req)
	if !openapitest.Check(r, openapitest.Exchange{Request: req, Status: rec.Code, Header: rec.Header(), Response: rec.Body.String()}) {
		r.Errorf("%s %s is not in the contract", method, path)
	}
	if into != nil {
		if err := json.Unmarshal(rec.Body.Bytes(), into); err != nil {
			r.Fatal(err)
		}
	}
	return rec.Code, rec.Body.String()
}

func TestAdmin_ShowsProgressAndGroupedFailures(t *testing.T) {
	r := newRig(t)
	run := r.start("a", "b", "c", "d")
	ends := []runs.StepEnd{
		{Number: 1, State: runs.StepDone},
		{Number: 2, State: runs.StepFailed, Error: "UPSTREAM_4XX: 418 teapot"},
		{Number: 3, State: runs.StepFailed, Error: "PARSE_ERROR: no JSON at byte 12"},
		{Number: 4, State: runs.StepFailed, Error: "PARSE_ERROR: no JSON at byte 7"},
	}
	if _, err := r.stored.End(t.Context(), run.ID, ends, r.now); err != nil {
		t.Fatal(err)
	}
	var d Details
	r.call(http.MethodGet, "/admin/v1/runs/"+run.ID, &d)
	if d.State != runs.Failed || d.TriggeredBy != "key:a" || d.Progress["user"].Failed != 3 || len(d.Failures) != 2 || d.Failures[0].Steps != 2 || d.Failures[0].Key != "c" {
		t.Errorf("details: got %+v, want two groups of failures, the larger one first", d)
	}
	var steps Steps
	r.call(http.MethodGet, "/admin/v1/runs/"+run.ID+"/steps?state=FAILED&limit=2", &steps)
	if len(steps.Steps) != 2 || steps.Next == nil || *steps.Next != 3 || steps.Steps[0].Key != "b" {
		t.Errorf("steps: got %+v, want b and c, and the next page", steps)
	}
	var v Verification
	if r.call(http.MethodGet, "/admin/v1/runs/"+run.ID+"/verify", &v); len(v.Faults) != 0 {
		t.Errorf("verify: got %q, want no fault", v.Faults)
	}
}

func TestAdmin_ListsNewestFirst(t *testing.T) {
	r := newRig(t)
	var ids []string
	for i := range 3 {
		ids = append(ids, r.start(fmt.Sprint("k", i)).ID)
	}
	var page Page
	r.call(http.MethodGet, "/admin/v1/runs?limit=2&source=github&state=RUNNING", &page)
	if len(page.Runs) != 2 || page.Runs[0].ID != ids[2] || page.Next == nil || *page.Next != ids[1] {
		t.Fatalf("first page: got %+v, want the two newest of %q", page, ids)
	}
	r.call(http.MethodGet, "/admin/v1/runs?limit=2&before="+*page.Next, &page)
	if len(page.Runs) != 1 || page.Runs[0].ID != ids[0] || page.Next != nil {
		t.Errorf("last page: got %+v, want the oldest", page)
	}
	for _, path := range []string{"?limit=0", "?state=open"} {
		if status, text := r.call(http.MethodGet, "/admin/v1/runs"+path, nil); status != 400 {
			t.Errorf("%s: got %d %s, want 400", path, status, text)
		}
	}
}

func TestAdmin_CancelAndRetryAreAudited(t *testing.T) {
	r := newRig(t)
	failed := r.start("a")
	if _, err := r.stored.End(t.Context(), failed.ID, []runs.StepEnd{{Number: 1, State: runs.StepFailed, Error: "x"}}, r.now); err != nil {
		t.Fatal(err)
	}
	var run Run
	if status, text := r.call(http.MethodPost, "/admin/v1/runs/"+failed.ID+"/retry", &run); status != 200 || run.Attempt != 2 || run.Steps.Open != 1 {
		t.Errorf("retry: got %d %s, want the second attempt", status, text)
	}
	if status, text := r.call(http.MethodPost, "/admin/v1/runs/"+failed.ID+"/retry", nil); status != 409 || !strings.Contains(text, "busy") {
		t.Errorf("retry of an active run: got %d %s, want 409", status, text)
	}
	if status, text := r.call(http.MethodPost, "/admin/v1/runs/"+failed.ID+"/cancel", &run); status != 200 || run.State != runs.Cancelled {
		t.Errorf("cancel: got %d %s, want the cancelled run", status, text)
	}
	if status, text := r.call(http.MethodPost, "/admin/v1/runs/"+failed.ID+"/cancel", nil); status != 409 {
		t.Errorf("second cancel: got %d %s, want 409", status, text)
	}
	if status, text := r.call(http.MethodPost, "/admin/v1/runs/unknown/cancel", nil); status != 404 {
		t.Errorf("unknown run: got %d %s, want 404", status, text)
	}
	audit, err := r.db.Audit(t.Context(), 10)
	if err != nil || len(audit) != 2 || audit[0].Action != "run-cancel" || audit[1].Action != "run-retry" || audit[0].Actor != "key:operator" || audit[0].Source != "github" {
		t.Errorf("audit: got %+v, %v; want the cancel and the retry", audit, err)
	}
}

var errAudit = errors.New("no permission for the audit")

// withoutAudit is a database that rejects entries of the audit.
type withoutAudit struct{ *sqlite.Store }

func (w withoutAudit) InTx(ctx context.Context, do func(store.Tx) error) error {
	return w.Store.InTx(ctx, func(tx store.Tx) error { return do(rejecting{tx}) })
}

type rejecting struct{ store.Tx }

func (r rejecting) Exec(ctx context.Context, statements ...store.Statement) ([]int64, error) {
	for _, s := range statements {
		if s.Text == store.InsertAudit {
			return nil, errAudit
		}
	}
	return r.Tx.Exec(ctx, statements...)
}

// A change that is not in the audit must not happen.
func TestAdmin_ChangesNothingWithoutTheAudit(t *testing.T) {
	r := newRig(t)
	active, failed := r.start("a"), r.start("b")
	if _, err := r.stored.End(t.Context(), failed.ID, []runs.StepEnd{{Number: 1, State: runs.StepFailed}}, r.now); err != nil {
		t.Fatal(err)
	}
	r.service.Store = withoutAudit{r.db}
	if _, err := r.service.Cancel(t.Context(), active.ID, "key:operator"); !errors.Is(err, errAudit) {
		t.Errorf("cancel: got %v, want %v", err, errAudit)
	}
	if _, err := r.service.Retry(t.Context(), failed.ID, "key:operator"); !errors.Is(err, errAudit) {
		t.Errorf("retry: got %v, want %v", err, errAudit)
	}
	for id, want := range map[string]runs.State{active.ID: runs.Running, failed.ID: runs.Failed} {
		if run, err := r.service.Get(t.Context(), id); err != nil || run.State != want {
			t.Errorf("run %s: got %s, %v, want %s", id, run.State, err, want)
		}
	}
}
