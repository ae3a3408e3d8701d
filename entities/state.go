package entities

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// StateReader reads snapshots and failures of entities.
type StateReader interface {
	// Get returns an entity's snapshot, or store.ErrNotFound.
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	// Statuses returns the failures of entities, in the order of the argument.
	Statuses(ctx context.Context, of []schemas.Entity) ([]store.Status, error)
}

// State is the stored data about one entity, in a response of the admin API.
type State struct {
	Registration *Entity        `json:"registration"` // registration of the entity for prefetching; nil: not registered
	Snapshot     *SnapshotState `json:"snapshot"`     // the stored snapshot or not-found result; nil: no fetch has succeeded
	Failure      *Failure       `json:"failure"`      // the failures since the last success; nil: the last fetch has succeeded
}

// SnapshotState describes the last successful fetch of an entity.
type SnapshotState struct {
	Version   int64      `json:"version"`
	CheckedAt time.Time  `json:"checkedAt"` // start of the last fetch that succeeded
	UpdatedAt *time.Time `json:"updatedAt"` // start of the last fetch that returned changed content; nil: no content
	NotFound  bool       `json:"notFound"`  // true: the upstream has no such entity
	Bytes     int        `json:"bytes"`     // length of the content in bytes, before compression
	MediaType string     `json:"mediaType"` // media type of raw content; empty: JSON, or no content
}

// Failure describes the failures of an entity since its last success.
type Failure struct {
	State    store.StatusState `json:"state"`
	Reason   string            `json:"reason"`
	Error    string            `json:"error"`
	Failures int               `json:"failures"` // number of failures in a row; delays, for example after a 429, are not counted
	Since    time.Time         `json:"since"`
	LastAt   time.Time         `json:"lastAt"`
	Until    *time.Time        `json:"until"` // end of the hold, or time of the retry; nil: until an operator acts
}

// readState responds with the state of one entity.
func readState(s Deps, r *http.Request) (admin.Answer, error) {
	e := schemas.Entity{Source: r.PathValue("source"), Facet: r.PathValue("facet"), Key: r.PathValue("key")}
	if err := e.Check(); err != nil {
		return admin.Answer{}, problem.New(http.StatusBadRequest, problem.BadKey, err.Error()+".")
	}
	var out State
	// Among all keys that begin with the entity's key, that key itself sorts first.
	e = fold(s.Sources, e)
	registered, err := s.Store.Entities(r.Context(), prefetched.Filter{Source: e.Source, Facet: e.Facet, KeyPrefix: e.Key}, schemas.Entity{}, 1)
	if err != nil {
		return admin.Answer{}, err
	}
	if len(registered) > 0 && registered[0].Entity == e {
		of := entityOf(registered[0])
		out.Registration = &of
	}
	snapshot, err := s.States.Get(r.Context(), e)
	switch {
	case err == nil:
		out.Snapshot = snapshotStateOf(snapshot.State)
	case !errors.Is(err, store.ErrNotFound):
		return admin.Answer{}, err
	}
	statuses, err := s.States.Statuses(r.Context(), []schemas.Entity{e})
	if err != nil {
		return admin.Answer{}, err
	}
	if len(statuses) > 0 && statuses[0].State != "" {
		out.Failure = failureOf(statuses[0])
	}
	if out == (State{}) {
		return admin.Answer{}, problem.New(http.StatusNotFound, problem.NoSuchSnapshot, fmt.Sprintf("Nothing is stored of %s, and it is not registered.", e))
	}
	return admin.Answer{Body: out}, nil
}

func snapshotStateOf(of store.State) *SnapshotState {
	return &SnapshotState{Version: of.Version, CheckedAt: of.CheckedAt.UTC(), UpdatedAt: schemas.OptionalTime(of.UpdatedAt.UTC()), NotFound: of.NotFound, Bytes: of.Size, MediaType: of.MediaType}
}

func failureOf(of store.Status) *Failure {
	return &Failure{State: of.State, Reason: of.Reason, Error: of.Error, Failures: of.Rounds, Since: of.Since.UTC(), LastAt: of.UpdatedAt.UTC(), Until: schemas.OptionalTime(of.Until.UTC())}
}
