// Package settings changes the quotas of sources, and how their entities are prefetched,
// while they run, and stops them in an emergency. A change lies over the configuration: it is
// refused unless the quota and the intervals that result can be held, it is written with an
// audit entry, and every limiter and scheduler reads it within two seconds, so that no
// process has to be restarted or even reached.
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
	"github.com/freshet/freshet/store"
)

// The actions that the audit knows.
const (
	actionSet    = "set"
	actionStop   = "stop"
	actionResume = "resume"
)

// maxAttempts is how often a change is made again after somebody else's came between.
// One of them always succeeds, so this many actors may act at the same instant.
const maxAttempts = 20

// Settings are the configured settings of all sources, and the changes over them.
type Settings struct {
	store   Store
	sources map[string]Source
}

// Source has the configured settings of a source.
type Source struct {
	Quota limiter.Config
	// Prefetch returns the prefetch settings with a change, or all mistakes in it.
	Prefetch func(PrefetchOverride) (Prefetch, error)
}

// New returns the settings of the sources by name.
func New(st Store, sources map[string]Source) *Settings {
	return &Settings{store: st, sources: sources}
}

// ChangeRequest says who wants a source changed.
type ChangeRequest struct {
	Source string
	Actor  string
	Note   string // why, for the audit
	// Revision is the only one that may be changed; nil: whichever there is.
	Revision *int64
}

// UnknownSourceError is returned for a source that is not configured.
type UnknownSourceError struct {
	Source string
	Known  []string
}

func (e *UnknownSourceError) Error() string {
	return fmt.Sprintf("there is no source %q; the configuration has %s", e.Source, strings.Join(e.Known, ", "))
}

// InvalidError is returned for a change that would leave a quota which can't be
// held, or that names a policy which there is none of, and likewise for prefetching.
type InvalidError struct {
	Part   string // quota or prefetch
	Reason error
}

func (e *InvalidError) Error() string { return e.Reason.Error() }
func (e *InvalidError) Unwrap() error { return e.Reason }

// ConflictError is returned for an order that was meant for another revision.
type ConflictError struct {
	Source           string
	Expected, Actual int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is at revision %d, not %d: somebody changed it meanwhile; read it and decide again", e.Source, e.Actual, e.Expected)
}

// ErrBusy is returned if others changed the same source again and again.
var ErrBusy = errors.New("others are changing the same source at this moment; try again")

// Get returns a source's settings. It fails with a NoSourceError, or if the store
// can't be read.
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

// All returns the settings of all sources by name.
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

// Change applies a patch and returns what results. It fails with a
// NoSourceError, RefusedError, ConflictError or ErrBusy, or if the store does;
// then nothing is changed. A patch that changes nothing makes no new revision.
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

// Stop ends the calls of a source until it is resumed; stopped already, it stays
// so. Whether its quota holds does not matter to an emergency, nor whether all of what
// was set can be read: what can't is dropped. Errors are those of Change.
func (s *Settings) Stop(ctx context.Context, o ChangeRequest) (State, error) {
	return s.change(ctx, o, actionStop, func(override *Override) error {
		override.Stopped = true
		return nil
	})
}

// Resume takes a Stop back; without one it changes nothing. Errors are those of
// Change.
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
		if unread != nil { // an emergency does not wait for who mends the row; the audit keeps it
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
