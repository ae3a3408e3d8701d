package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/runs/api"
)

func (f *fakeRuns) List(context.Context, runs.Filter) (api.Page, error) { return f.runPage, f.readErr }

func (f *fakeRuns) Show(_ context.Context, id string) (api.Details, error) {
	if f.readErr == nil && f.run.ID != id {
		return api.Details{}, runs.ErrNotFound
	}
	return f.run, f.readErr
}

func (f *fakeRuns) change(verb, id, actor string) (api.Run, error) {
	if f.run.ID != id {
		return api.Run{}, runs.ErrNotFound
	}
	f.runChanges = append(f.runChanges, verb+" "+id+" by "+actor)
	return f.run.Run, nil
}

func (f *fakeRuns) Cancel(_ context.Context, id, actor string) (api.Run, error) {
	return f.change("cancel", id, actor)
}

func (f *fakeRuns) Retry(_ context.Context, id, actor string) (api.Run, error) {
	return f.change("retry", id, actor)
}

// fillRuns gives the rig an active run and a failed run.
func fillRuns(r *rig) {
	ended := testNow.Add(-time.Hour)
	run := api.Run{
		ID: "0198b2c0-0000-7000-8000-0000000000aa", Source: "nexon", Name: "profile", Scope: "somebody", Keys: 1, State: runs.Failed, Attempt: 2, TriggeredBy: "key:a",
		Steps: runs.Counts{Total: 5_120, Done: 5_000, NotFound: 20, Failed: 100}, CreatedAt: testNow.Add(-3 * time.Hour), StartedAt: testNow.Add(-2 * time.Hour), Deadline: testNow.Add(time.Hour), EndedAt: &ended,
	}
	active := run
	active.ID, active.State, active.EndedAt, active.Scope, active.Keys, active.Steps = "0198b2c0-0000-7000-8000-0000000000ab", runs.Running, nil, "120 keys, sha256:00", 120, runs.Counts{Total: 120, Open: 30, Done: 90}
	next := active.ID
	r.runPage = api.Page{Runs: []api.Run{active, run}, Next: &next}
	r.run = api.Details{
		Run: run, Progress: map[string]runs.Counts{"character": {Total: 5_119, Done: 4_999, NotFound: 20, Failed: 100}, "user": {Total: 1, Done: 1}},
		Failures: []api.Failures{{Fingerprint: "a", Steps: 99, Facet: "character", Key: "3fa8b1c2d4", Error: "PARSE_ERROR: no JSON"}, {Fingerprint: "b", Steps: 1, Facet: "character", Key: "b", Error: "OUTAGE: 503"}},
	}
}

func TestRuns_ShowsProgressAndFailures(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	list := r.get(root + "/runs")
	for _, want := range []string{"nexon profile", "120 keys", "RUNNING", "5,120"} {
		if got := list.textByID("runs"); !strings.Contains(got, want) {
			t.Errorf("list: got %q, want it to contain %q", got, want)
		}
	}
	if n := list.linksTo(runLink(r.run.ID)); n != 1 {
		t.Errorf("links to the run: got %d, want 1", n)
	}
	d := r.get(runLink(r.run.ID))
	d.wellFormed(t, "run")
	for id, want := range map[string]string{"run-state": "FAILED : 0 of 5,120 steps are open.", "failures": "PARSE_ERROR: no JSON"} {
		if got := strings.Join(strings.Fields(d.textByID(id)), " "); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want it to contain %q", id, got, want)
		}
	}
	if text := d.text(); !strings.Contains(text, "Retry the failed steps") || strings.Contains(text, "Cancel the run") {
		t.Error("actions of a failed run: want retry and no cancel")
	}
	if got := r.get(runLink("unknown")).status; got != http.StatusNotFound {
		t.Errorf("unknown run: got status %d, want 404", got)
	}
	r.readErr = errBroken
	for _, path := range []string{root + "/runs", runLink(r.run.ID)} {
		if d := r.get(path); !strings.Contains(d.text(), "can't be read") || strings.Contains(d.text(), errBroken.Error()) {
			t.Errorf("%s: got %q, want that it can't be read", path, d.text())
		}
	}
}

func TestRuns_CancelAndRetry(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	for _, verb := range []string{"cancel", "retry"} {
		if got := r.do("POST", runLink(r.run.ID)+"/"+verb, url.Values{}).status; got != http.StatusSeeOther {
			t.Errorf("%s: got status %d, want 303", verb, got)
		}
	}
	if len(r.runChanges) != 2 || !strings.HasPrefix(r.runChanges[0], "cancel "+r.run.ID) || !strings.HasPrefix(r.runChanges[1], "retry "+r.run.ID) {
		t.Errorf("changes: got %q, want a cancel and a retry", r.runChanges)
	}
}

// A client without the scope admin must not see the keys of runs.
func TestRuns_HideKeys(t *testing.T) {
	c := &Console{Deps: Deps{Facets: map[string][]string{"nexon": {"character"}}}}
	many := api.Run{Source: "nexon", Keys: 2, Scope: "2 keys"}
	if canSeeRun(c, access.Client{Scopes: []access.Scope{access.Inspect}}, many) {
		t.Error("a run of two keys: got visible without the scope admin, want hidden")
	}
	if !canSeeRun(c, access.Client{Scopes: []access.Scope{access.Admin}}, many) {
		t.Error("a run of two keys: got hidden from an administrator, want visible")
	}
}
