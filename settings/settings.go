package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

// Values of AuditEntry.Action that this package writes.
const (
	actionSet    = "set"
	actionStop   = "stop"
	actionResume = "resume"
)

// maxAttempts is the maximum number of attempts to store one change. An attempt is repeated if
// another change of the same source is stored first. Each concurrent change can cause at most one
// repetition, so up to maxAttempts concurrent changes all succeed.
const maxAttempts = 20

// Settings reads and changes the settings of all sources: the configured values, replaced by the
// stored overrides. Its methods may be called concurrently.
type Settings struct {
	store   Store
	sources map[string]Source
}

// Source holds the configured settings of one source.
type Source struct {
	Quota limiter.Config
	// Prefetch applies an override to the configured prefetch settings. It returns an error
	// that lists every invalid value.
	Prefetch func(PrefetchOverride) (Prefetch, error)
}

// New returns the Settings of the given sources, by source name.
func New(st Store, sources map[string]Source) *Settings {
	return &Settings{store: st, sources: sources}
}

// ChangeRequest identifies the source to change, the actor and the reason.
type ChangeRequest struct {
	Source string
	Actor  string
	Note   string // the reason of the change, for the audit log
	// Revision is the revision that the change expects (If-Match). If the current revision differs
	// from it, the change fails with a ConflictError. Nil accepts any revision.
	Revision *int64
}

// UnknownSourceError reports that the configuration has no source of this name.
type UnknownSourceError struct {
	Source string
	Known  []string
}

func (e *UnknownSourceError) Error() string {
	return fmt.Sprintf("unknown source %q; the configuration has %s", e.Source, strings.Join(e.Known, ", "))
}

// InvalidError reports that the settings would be invalid after a change: for example a
// quota that could exceed its limit, an unknown policy, or an invalid prefetch interval.
type InvalidError struct {
	Code   problem.Code // the problem code: problem.QuotaRefused or problem.PrefetchRefused
	Reason error
}

func (e *InvalidError) Error() string { return e.Reason.Error() }
func (e *InvalidError) Unwrap() error { return e.Reason }

// ConflictError reports that a source is not at the revision that the request expects.
type ConflictError struct {
	Source           string
	Expected, Actual int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("the settings of %s are at revision %d, not %d, because another change was made; read them and try again", e.Source, e.Actual, e.Expected)
}

// ErrBusy reports that a change conflicted with other changes maxAttempts times.
var ErrBusy = errors.New("too many concurrent changes of the same source; try again")

// Get returns the settings of one source. It returns an UnknownSourceError for a source that
// is not configured, and the store's error if the store can't be read.
func (s *Settings) Get(ctx context.Context, source string) (State, error) {
	config, err := s.source(source)
	if err != nil {
		return State{}, err
	}
	kept, err := s.store.Setting(ctx, source)
	if err != nil {
		return State{}, err
	}
	return newState(kept, config)
}

// All returns the settings of all sources, sorted by name.
func (s *Settings) All(ctx context.Context) ([]State, error) {
	all := make([]State, 0, len(s.sources))
	for _, source := range s.names() {
		state, err := s.Get(ctx, source)
		if err != nil {
			return nil, err
		}
		all = append(all, state)
	}
	return all, nil
}

// Change applies a patch and returns the new state. It returns an UnknownSourceError,
// InvalidError, ConflictError, ErrBusy or the store's error; the settings are then
// unchanged. A patch without effect creates no revision and no audit entry.
func (s *Settings) Change(ctx context.Context, o ChangeRequest, p Patch) (State, error) {
	source, err := s.source(o.Source)
	if err != nil {
		return State{}, err
	}
	return s.change(ctx, o, actionSet, func(override *Override) error {
		p.apply(override)
		_, err := effectiveValues(source, *override)
		return err
	})
}

// Stop sets the emergency stop of a source: workers send no calls until Resume. It is
// idempotent. A stop must always be possible, so Stop does not validate the quota, and it
// discards a stored override that can't be decoded. It returns the errors of Change.
func (s *Settings) Stop(ctx context.Context, o ChangeRequest) (State, error) {
	return s.change(ctx, o, actionStop, func(override *Override) error {
		override.Stopped = true
		return nil
	})
}

// Resume clears the emergency stop. It is idempotent and returns the errors of Change.
func (s *Settings) Resume(ctx context.Context, o ChangeRequest) (State, error) {
	return s.change(ctx, o, actionResume, func(override *Override) error {
		override.Stopped = false
		return nil
	})
}

func (s *Settings) change(ctx context.Context, o ChangeRequest, action string, apply func(*Override) error) (State, error) {
	config, err := s.source(o.Source)
	if err != nil {
		return State{}, err
	}
	for range maxAttempts {
		kept, err := s.store.Setting(ctx, o.Source)
		if err != nil {
			return State{}, err
		}
		if o.Revision != nil && *o.Revision != kept.Revision {
			return State{}, &ConflictError{o.Source, *o.Revision, kept.Revision}
		}
		override, unread := decodeOverride(kept)
		if unread != nil && action != actionStop {
			return State{}, unread
		}
		before, err := json.Marshal(override)
		if err != nil {
			return State{}, err
		}
		if unread != nil { // the audit entry keeps the undecodable override that Stop discards
			before = kept.Value
		}
		if err := apply(&override); err != nil {
			return State{}, err
		}
		after, err := json.Marshal(override)
		if err != nil {
			return State{}, err
		}
		if bytes.Equal(before, after) {
			return newState(kept, config)
		}
		now := time.Now().UTC().Truncate(time.Microsecond)
		kept = store.Setting{Source: o.Source, Value: after, Revision: kept.Revision + 1, ChangedAt: now, ChangedBy: o.Actor}
		err = s.store.ChangeSetting(ctx, kept, store.AuditEntry{
			At: now, Actor: o.Actor, Action: action, Source: o.Source, Before: before, After: after, Note: o.Note,
		})
		if !errors.Is(err, store.ErrConflict) {
			if err != nil {
				return State{}, err
			}
			return newState(kept, config)
		}
	}
	return State{}, ErrBusy
}

func (s *Settings) source(name string) (Source, error) {
	source, known := s.sources[name]
	if !known {
		return source, &UnknownSourceError{name, s.names()}
	}
	return source, nil
}

func (s *Settings) names() []string { return slices.Sorted(maps.Keys(s.sources)) }
