// Package api starts, shows, cancels and retries runs for clients and operators. It defines the JSON of
// runs in HTTP responses, and has the handler of the admin API. Package query has the handlers of the
// paths below /v1/runs.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// MaxBodyBytes is the maximum size of the body of a request that starts a run.
const MaxBodyBytes = 4 << 20

// Run is one run as the API returns it.
type Run struct {
	ID     string     `json:"id"`
	Source string     `json:"source"`
	Name   string     `json:"name"`
	Scope  string     `json:"scope"` // identifies the set of keys of the run
	Keys   int        `json:"keys"`  // number of keys
	State  runs.State `json:"state"`
	// Waiting is true if the run waits for the end of the earlier run of its scope.
	Waiting   bool        `json:"waiting"`
	Attempt   int         `json:"attempt"`
	Steps     runs.Counts `json:"steps"`
	CreatedAt time.Time   `json:"createdAt"`
	StartedAt time.Time   `json:"startedAt"` // start of the current attempt
	Deadline  time.Time   `json:"deadline"`
	EndedAt   *time.Time  `json:"endedAt"` // null: the run is active
	// Error is why the run has failed; empty means that it has not failed, or its failed steps are the
	// reason.
	Error string `json:"error,omitempty"`
	// TriggeredBy is the name of the client that started the run, or "schedule". It is set only in
	// responses to operators.
	TriggeredBy string `json:"triggeredBy,omitempty"`
}

func runOf(r runs.Run) Run {
	return Run{
		ID: r.ID, Source: r.Source, Name: r.Name, Scope: r.Scope, Keys: r.Keys, State: r.State, Waiting: r.Waiting, Attempt: r.Attempt, Steps: r.Counts,
		CreatedAt: r.CreatedAt, StartedAt: r.AttemptAt, Deadline: r.Deadline, EndedAt: schemas.OptionalTime(r.EndedAt), Error: r.Error,
	}
}

// Ended reports whether the run has ended.
func (r Run) Ended() bool { return r.EndedAt != nil }

// Deps are the dependencies of a Service.
type Deps struct {
	Store   runs.Store
	Sources map[string]*source.Source
	// Configs are the definitions of runs by source and name.
	Configs map[string]map[string]runs.Config
	Redis   redis.UniversalClient
	// Actor returns the name of the operator that sent a request.
	Actor func(r *http.Request) string
	// Paid is true if refreshes cost credits. Then only operators can start runs, because a run takes
	// no credits.
	Paid bool
	Now  func() time.Time
	Log  *slog.Logger
}

// Service starts, shows, cancels and retries runs. Its methods may be called concurrently. Their errors are
// *problem.HTTPError, or errors of the database.
type Service struct {
	Deps
	runs *runs.Runs
}

// New returns a Service.
func New(d Deps) *Service { return &Service{d, runs.New(d.Store)} }

// Start starts a run for a client. If no new run is needed because an earlier run fetches the same
// data, it returns that run, and `started` is false.
func (s *Service) Start(ctx context.Context, client access.Client, sourceName, name, idempotencyKey string, body []byte) (run Run, started bool, err error) {
	src, known := s.Sources[sourceName]
	if !known {
		return Run{}, false, problem.New(http.StatusNotFound, problem.NoSuchSource, "The source is unknown. GET /v1 lists the sources.")
	}
	config, known := s.Configs[sourceName][name]
	if !known {
		text := "The source has no runs."
		if names := slices.Sorted(maps.Keys(s.Configs[sourceName])); len(names) > 0 {
			text = "The source has no run of this name. It has " + strings.Join(names, ", ") + "."
		}
		return Run{}, false, problem.New(http.StatusNotFound, problem.NoSuchJob, text)
	}
	if s.Paid && !client.May(access.Admin) {
		return Run{}, false, problem.New(http.StatusForbidden, problem.InsufficientScope, "Refreshes cost credits, and a run is not paid for. Only a client with the scope admin can start a run.")
	}
	keys, err := decodeKeys(body)
	if err != nil {
		return Run{}, false, problem.Body(err)
	}
	var stored runs.Run
	order := runs.Order{Source: src, Name: name, Config: config, Keys: keys, TriggeredBy: client.Name, IdempotencyKey: idempotencyKey}
	for range 3 { // A concurrent start of a run of the same scope can make the first transactions fail.
		if stored, started, err = s.runs.Start(ctx, order, s.Now()); !errors.Is(err, store.ErrContention) {
			break
		}
	}
	if err != nil {
		return Run{}, false, explain(err)
	}
	if started {
		s.wake(ctx, stored)
	}
	return runOf(stored), started, nil
}

// decodeKeys decodes the body of a request that starts a run: {"keys": [...]} or {"prefix": "..."}.
func decodeKeys(body []byte) (runs.Keys, error) {
	var keys struct {
		Keys   []string `json:"keys"`
		Prefix *string  `json:"prefix"`
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&keys); err != nil || d.More() {
		return runs.Keys{}, errors.New(`the body must be {"keys":["a","b"]} or {"prefix":"a"}; the empty prefix means all registered entities`)
	}
	k := runs.Keys{List: keys.Keys}
	if keys.Prefix != nil {
		k.Prefix, k.All = *keys.Prefix, *keys.Prefix == ""
	}
	return k, nil
}

// Get returns a run.
func (s *Service) Get(ctx context.Context, id string) (Run, error) {
	run, err := s.runs.Get(ctx, id)
	if err != nil {
		return Run{}, explain(err)
	}
	return runOf(run), nil
}

// wake wakes the pollers of the run's source, and the clients that wait for the run.
func (s *Service) wake(ctx context.Context, run runs.Run) {
	poll.WakeAt(ctx, s.Redis, runs.Channel(run.Source), s.Now(), s.Log)
	runs.Announce(ctx, s.Redis, run, s.Log)
}

// explain returns the HTTP problem for an error that the client has caused. It returns other errors
// unchanged.
func explain(err error) error {
	detail := func(is error) string {
		_, text, _ := strings.Cut(err.Error(), is.Error()+": ")
		if text == "" {
			text = is.Error()
		}
		return strings.ToUpper(text[:1]) + text[1:] + "."
	}
	switch {
	case errors.Is(err, runs.ErrInvalid):
		return problem.New(http.StatusBadRequest, problem.BadKeys, detail(runs.ErrInvalid))
	case errors.Is(err, runs.ErrNotFound):
		return problem.New(http.StatusNotFound, problem.NoSuchJob, "There is no run with this id. The runs of a source are listed by GET /admin/v1/runs.")
	case errors.Is(err, runs.ErrKeyReused):
		return problem.New(http.StatusUnprocessableEntity, problem.IdempotencyKeyReused, "The Idempotency-Key was used for a run with another body. Send a new key for a new run.")
	case errors.Is(err, runs.ErrActive):
		return problem.New(http.StatusConflict, problem.Busy, detail(runs.ErrActive))
	case errors.Is(err, runs.ErrEnded):
		return problem.New(http.StatusConflict, problem.Busy, "The run has ended, so it can't be cancelled.")
	case errors.Is(err, runs.ErrNoFailedStep):
		return problem.New(http.StatusConflict, problem.Busy, "The run is active or cancelled, or none of its steps has failed. Only the failed steps of an ended run can be retried.")
	}
	return err
}
