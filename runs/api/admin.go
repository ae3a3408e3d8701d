package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	actionCancel = "run-cancel"
	actionRetry  = "run-retry"

	defaultPage, maxPage = 100, 1000
	// maxGroupedFailures is the maximum number of failed steps that Details reads to group them.
	maxGroupedFailures = 10_000
)

// Handler returns the handler of the admin API of runs: the path /admin/v1/runs and all paths below it.
// The caller must have checked that the client has the scope admin.
func (s *Service) Handler() http.Handler {
	return admin.API{
		Paths: map[string]map[string]admin.Handle{
			"/admin/v1/runs":             {http.MethodGet: s.list},
			"/admin/v1/runs/{id}":        {http.MethodGet: s.show},
			"/admin/v1/runs/{id}/steps":  {http.MethodGet: s.steps},
			"/admin/v1/runs/{id}/verify": {http.MethodGet: s.verify},
			"/admin/v1/runs/{id}/cancel": {http.MethodPost: s.cancel},
			"/admin/v1/runs/{id}/retry":  {http.MethodPost: s.retry},
		},
		Explain: func(err error) *problem.HTTPError {
			p, _ := errors.AsType[*problem.HTTPError](explain(err))
			return p
		},
		Unavailable: "Runs can't be read or written now. The query service's log has the reason. After an upgrade, run `freshet migrate up`.",
		CrossSite:   "A page of another site may not change runs.",
		Log:         s.Log,
	}.Handler()
}

// Page is a part of the list of runs, newest first. Next is the value of the parameter before for the
// next page; nil means that this page is the last.
type Page struct {
	Runs []Run   `json:"runs"`
	Next *string `json:"next"`
}

func limitOf(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, problem.New(http.StatusBadRequest, problem.BadLimit, fmt.Sprintf("limit must be a number from 1 to %d.", maxPage))
	}
	return n, nil
}

func (s *Service) list(r *http.Request) (admin.Answer, error) {
	limit, err := limitOf(r)
	if err != nil {
		return admin.Answer{}, err
	}
	q := r.URL.Query()
	state := runs.State(q.Get("state"))
	if !slices.Contains([]runs.State{"", runs.Running, runs.Completed, runs.Failed, runs.Cancelled}, state) {
		return admin.Answer{}, problem.New(http.StatusBadRequest, problem.BadFilter, "state must be RUNNING, COMPLETED, FAILED or CANCELLED.")
	}
	page, err := s.List(r.Context(), runs.Filter{Source: q.Get("source"), Name: q.Get("name"), State: state, Before: q.Get("before"), Limit: limit})
	return admin.Answer{Body: page}, err
}

// List returns runs, the newest first.
func (s *Service) List(ctx context.Context, f runs.Filter) (Page, error) {
	all, err := s.runs.List(ctx, f)
	page := Page{Runs: []Run{}}
	for _, run := range all {
		page.Runs = append(page.Runs, adminRun(run))
	}
	if len(all) == f.Limit {
		page.Next = &all[f.Limit-1].ID
	}
	return page, err
}

func adminRun(r runs.Run) Run {
	run := runOf(r)
	run.TriggeredBy = r.TriggeredBy
	return run
}

// Details describe one run: its counters, its progress and its failures.
type Details struct {
	Run
	// Progress is the numbers of steps of each facet, by state.
	Progress map[string]runs.Counts `json:"progress"`
	// Failures are groups of failed steps with similar errors, the largest first.
	Failures []Failures `json:"failures"`
}

// Failures are failed steps with similar errors.
type Failures struct {
	Fingerprint string `json:"fingerprint"`
	Steps       int    `json:"steps"`
	// Facet, Key and Error are the ones of the first step of the group.
	Facet string `json:"facet"`
	Key   string `json:"key"`
	Error string `json:"error"`
}

func (s *Service) show(r *http.Request) (admin.Answer, error) {
	d, err := s.Show(r.Context(), r.PathValue("id"))
	return admin.Answer{Body: d}, err
}

// Show returns a run with its progress and failures.
func (s *Service) Show(ctx context.Context, id string) (Details, error) {
	run, err := s.runs.Get(ctx, id)
	if err != nil {
		return Details{}, err
	}
	d := Details{Run: adminRun(run), Failures: []Failures{}}
	if d.Progress, err = s.runs.Progress(ctx, id); err != nil {
		return Details{}, err
	}
	failed, err := s.runs.Steps(ctx, id, runs.StepFailed, 0, maxGroupedFailures)
	if err != nil {
		return Details{}, err
	}
	groups := map[string]int{} // index in d.Failures, by the fingerprint of the error
	for _, step := range failed {
		fingerprint := schemas.DeadLetter{Error: step.Error}.Fingerprint(schemas.Entity{Source: run.Source, Facet: step.Facet, Key: step.Key})
		i, known := groups[fingerprint]
		if !known {
			i = len(d.Failures)
			groups[fingerprint] = i
			d.Failures = append(d.Failures, Failures{Fingerprint: fingerprint, Facet: step.Facet, Key: step.Key, Error: step.Error})
		}
		d.Failures[i].Steps++
	}
	slices.SortStableFunc(d.Failures, func(a, b Failures) int { return cmp.Compare(b.Steps, a.Steps) })
	return d, nil
}

// Step is one step of a run as the admin API returns it.
type Step struct {
	Number int            `json:"number"`
	Facet  string         `json:"facet"`
	Key    string         `json:"key"`
	State  runs.StepState `json:"state"`
	Error  string         `json:"error,omitempty"`
	// DueAt is when a poller examines an open step again. If it is missing, the step waits until other
	// steps of the run have ended.
	DueAt *time.Time `json:"dueAt,omitempty"`
}

// Steps is a page of the list of steps. Next is the value of the query parameter after for the next
// page; nil means that this page is the last.
type Steps struct {
	Steps []Step `json:"steps"`
	Next  *int   `json:"next"`
}

func (s *Service) steps(r *http.Request) (admin.Answer, error) {
	limit, err := limitOf(r)
	if err != nil {
		return admin.Answer{}, err
	}
	q := r.URL.Query()
	after, err := strconv.Atoi(cmp.Or(q.Get("after"), "0"))
	if err != nil || after < 0 {
		return admin.Answer{}, problem.New(http.StatusBadRequest, problem.BadCursor, "after must be the value of next in an earlier response.")
	}
	if _, err := s.runs.Get(r.Context(), r.PathValue("id")); err != nil {
		return admin.Answer{}, err
	}
	all, err := s.runs.Steps(r.Context(), r.PathValue("id"), runs.StepState(q.Get("state")), after, limit)
	page := Steps{Steps: []Step{}}
	for _, step := range all {
		page.Steps = append(page.Steps, Step{Number: step.Number, Facet: step.Facet, Key: step.Key, State: step.State, Error: step.Error, DueAt: schemas.OptionalTime(step.DueAt)})
	}
	if len(all) == limit {
		page.Next = &all[limit-1].Number
	}
	return admin.Answer{Body: page}, err
}

// Verification says whether the counters of a run match its steps.
type Verification struct {
	Faults []string `json:"faults"`
}

func (s *Service) verify(r *http.Request) (admin.Answer, error) {
	faults, err := s.runs.Verify(r.Context(), r.PathValue("id"))
	return admin.Answer{Body: Verification{append([]string{}, faults...)}}, err
}

func (s *Service) cancel(r *http.Request) (admin.Answer, error) {
	run, err := s.Cancel(r.Context(), r.PathValue("id"), s.Actor(r))
	return admin.Answer{Body: run}, err
}

func (s *Service) retry(r *http.Request) (admin.Answer, error) {
	run, err := s.Retry(r.Context(), r.PathValue("id"), s.Actor(r))
	return admin.Answer{Body: run}, err
}

// Cancel cancels a run for an operator.
func (s *Service) Cancel(ctx context.Context, id, actor string) (Run, error) {
	return s.change(ctx, actionCancel, actor, func(r *runs.Runs) (runs.Run, error) { return r.Cancel(ctx, id, s.Now()) })
}

// Retry retries the failed steps of a run for an operator.
func (s *Service) Retry(ctx context.Context, id, actor string) (Run, error) {
	return s.change(ctx, actionRetry, actor, func(r *runs.Runs) (runs.Run, error) { return r.Retry(ctx, id, s.Now()) })
}

// change changes a run and writes the audit entry of the change in one transaction. Then it wakes the pollers of the
// run's source.
func (s *Service) change(ctx context.Context, action, actor string, do func(*runs.Runs) (runs.Run, error)) (changed Run, err error) {
	var run runs.Run
	err = s.Store.InTx(ctx, func(tx store.Tx) error {
		if run, err = do(runs.New(within{tx})); err != nil {
			return err
		}
		changed = adminRun(run)
		after, err := json.Marshal(changed)
		if err != nil {
			return err
		}
		entry := store.AuditEntry{At: s.Now(), Actor: actor, Action: action, Source: run.Source, Before: json.RawMessage("{}"), After: after}
		_, err = tx.Exec(ctx, store.Statement{Text: store.InsertAudit, Args: entry.AuditArgs()})
		return err
	})
	if err != nil {
		return Run{}, err
	}
	s.wake(ctx, run)
	return changed, nil
}

// within is a store whose transactions are parts of one transaction.
type within struct{ tx store.Tx }

func (w within) InTx(_ context.Context, do func(store.Tx) error) error { return do(w.tx) }
