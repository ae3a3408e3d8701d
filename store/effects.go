package store

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
)

// Effects are what is to follow from a change. They are written down in the transaction
// that stores it: nothing is lost, and nothing follows from what was not stored.
type Effects struct {
	// Tell: the change is told on its source's change topic.
	Tell bool
	// Triggers are other facets of the same key that are refreshed because of it.
	Triggers []Trigger
}

// Trigger is a facet that is refreshed because another one of its key has changed.
type Trigger struct {
	Facet string
	// Backoff is kept in microseconds: a facet that was refreshed within it is left alone.
	Backoff time.Duration
	// Params are those of its request; nil: none.
	Params map[string]string
}

// Fires reports whether the facet is to be refreshed now. State is its own.
func (t Trigger) Fires(state State, now time.Time) bool {
	return state.CheckedAt.IsZero() || now.Sub(state.CheckedAt) >= t.Backoff
}

// Empty reports whether nothing follows.
func (e Effects) Empty() bool { return !e.Tell && len(e.Triggers) == 0 }

// Effect is one change from which something follows.
type Effect struct {
	ID      int64 // rises with an entity's versions, with gaps; given by the database
	Entity  schemas.Entity
	Version int64
	At      time.Time // when the fetch began that brought the change: the write's CheckedAt
	// Before and After are the hashes of the content that the write replaced and of its
	// own. Before is zero if there was no content.
	Before, After Hash
	Effects
}

// The queries about effects, the same in every database.
const (
	// EffectColumns are those that ScanEffect takes.
	EffectColumns = `e.id, e.source, e.facet, e.key, e.version, e.at, e.before, e.after, e.tell, e.triggers`

	// InsertEffect begins a statement that goes on with rows of EffectArgs. An effect is
	// due from its change on.
	InsertEffect = `INSERT INTO effects (source, facet, key, version, at, before, after, tell, triggers, due_at)`

	// DueEffects ends a query of effects e. It takes the source, the time and the greatest
	// number of rows.
	DueEffects = ` FROM effects e WHERE e.source = $1 AND e.due_at <= $2 ORDER BY e.due_at, e.id LIMIT $3`

	// SelectNextEffect takes the source and returns microseconds, or no row.
	SelectNextEffect = `SELECT due_at FROM effects WHERE source = $1 ORDER BY due_at, id LIMIT 1`
)

// trigger is a Trigger as it is kept.
type trigger struct {
	Facet   string            `json:"facet"`
	Backoff int64             `json:"backoff"` // microseconds
	Params  map[string]string `json:"params,omitempty"`
}

// EffectArgs are the values of InsertEffect's columns but the last one, which is that of at.
func (w Write) EffectArgs(before Hash) ([]any, error) {
	triggers := make([]trigger, len(w.Effects.Triggers))
	for i, t := range w.Effects.Triggers {
		triggers[i] = trigger{t.Facet, t.Backoff.Microseconds(), t.Params}
	}
	text, err := json.Marshal(triggers)
	if err != nil {
		return nil, err
	}
	replaced := []byte{}
	if before != (Hash{}) {
		replaced = before[:]
	}
	return []any{
		w.Entity.Source, w.Entity.Facet, w.Entity.Key, w.Version, w.CheckedAt.UnixMicro(),
		replaced, w.Hash[:], w.Effects.Tell, string(text),
	}, nil
}

// ScanEffect fills the effect by scan, which is a row's Scan.
func (e *Effect) ScanEffect(scan func(...any) error) error {
	var at int64
	var before, after, text []byte
	err := scan(&e.ID, &e.Entity.Source, &e.Entity.Facet, &e.Entity.Key, &e.Version, &at, &before, &after, &e.Tell, &text)
	if err != nil {
		return err
	}
	var triggers []trigger
	if err := json.Unmarshal(text, &triggers); err != nil {
		return fmt.Errorf("the triggers of effect %d of %s: %w", e.ID, e.Entity, err)
	}
	e.At, e.Before, e.After, e.Triggers = fromMicros(at), Hash{}, Hash{}, nil
	copy(e.Before[:], before)
	copy(e.After[:], after)
	for _, t := range triggers {
		e.Triggers = append(e.Triggers, Trigger{t.Facet, time.Duration(t.Backoff) * time.Microsecond, t.Params})
	}
	return nil
}
