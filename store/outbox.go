package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
)

// OutboxEvents are what is to follow from a change. They are written down in the transaction
// that stores it: nothing is lost, and nothing follows from what was not stored.
type OutboxEvents struct {
	// PublishChange: the change is told on its source's change topic.
	PublishChange bool
	// Triggers are other facets of the same key that are refreshed because of it.
	Triggers []Trigger
}

// Trigger is a facet that is refreshed because another one of its key has changed.
type Trigger struct {
	Facet string
	// Backoff is kept in microseconds: a facet that was refreshed within it is left alone.
	Backoff time.Duration
	// Quiet delays the refresh until no change was seen for that long, but by MaxDelay from the
	// first change at most. 0: the refresh follows at once.
	Quiet, MaxDelay time.Duration
	// Params are those of its request; nil: none.
	Params map[string]string
}

// Fires reports whether the facet is to be refreshed now. State is its own.
func (t Trigger) Fires(state State, now time.Time) bool {
	return state.CheckedAt.IsZero() || now.Sub(state.CheckedAt) >= t.Backoff
}

// Empty reports whether nothing follows.
func (e OutboxEvents) Empty() bool { return !e.PublishChange && len(e.Triggers) == 0 }

// OutboxEvent is one change from which something follows.
type OutboxEvent struct {
	ID      int64 // rises with an entity's versions, with gaps; given by the database
	Entity  schemas.Entity
	Version int64
	At      time.Time // when the fetch began that brought the change: the write's CheckedAt
	// Before and After are the hashes of the content that the write replaced and of its
	// own. Before is zero if there was no content.
	Before, After Hash
	// Of several changes that wait for a Quiet trigger there is one Effect: that of the last
	// one, with the first one's Before and a new ID. The trigger is its only one.
	OutboxEvents
}

// ReadyAt returns when the effect was to follow: at its change, or when the changes had paused.
func (e OutboxEvent) ReadyAt() time.Time {
	if len(e.Triggers) == 1 {
		return e.At.Add(e.Triggers[0].Quiet)
	}
	return e.At
}

// The queries about effects, the same in every database.
const (
	// OutboxColumns are those that ScanOutboxEvent takes.
	OutboxColumns = `e.id, e.source, e.facet, e.key, e.version, e.at, e.before, e.after, e.publish_change, e.triggers`

	// InsertOutboxEvent begins a statement that goes on with OutboxRows.
	InsertOutboxEvent = `INSERT INTO outbox AS e (source, facet, key, version, at, before, after, publish_change, triggers, due_at, quiet_facet, latest_at)`

	// DueOutboxEvents ends a query of effects e. It takes the source, the time and the greatest
	// number of rows.
	DueOutboxEvents = ` FROM outbox e WHERE e.source = $1 AND e.due_at <= $2 ORDER BY e.due_at, e.id LIMIT $3`

	// DeleteQuietTriggers deletes the triggers of an entity, and those that would refresh it, that wait
	// for quiet. It takes source, facet and key.
	DeleteQuietTriggers = `DELETE FROM outbox WHERE source = $1 AND key = $3 AND quiet_facet <> '' AND (facet = $2 OR quiet_facet = $2)`

	// SelectNextOutboxTime takes the source and returns microseconds, or no row.
	SelectNextOutboxTime = `SELECT due_at FROM outbox WHERE source = $1 ORDER BY due_at, id LIMIT 1`
)

// storedTrigger is a Trigger as it is kept.
type storedTrigger struct {
	Facet    string            `json:"facet"`
	Backoff  int64             `json:"backoff"` // microseconds, like the others
	Quiet    int64             `json:"quiet,omitempty"`
	MaxDelay int64             `json:"maxDelay,omitempty"`
	Params   map[string]string `json:"params,omitempty"`
}

// OutboxRow is a row of InsertEffect for one write.
type OutboxRow struct {
	Before, After []byte
	PublishChange bool
	Triggers      string // JSON
	// Due is microseconds, and so is Latest: by when the effect is due however many changes
	// follow. QuietFacet is the facet of its trigger that waits for quiet; empty: none does.
	Due, Latest int64
	QuietFacet  string
}

// OutboxRows are the rows of a write that brought a change: one for its message and the
// triggers that follow at once, and one for each trigger that waits for quiet.
func (w Write) OutboxRows(before Hash) (rows []OutboxRow, err error) {
	at := w.CheckedAt.UnixMicro()
	base := OutboxRow{Before: []byte{}, After: w.Hash[:], Due: at}
	if before != (Hash{}) {
		base.Before = before[:]
	}
	add := func(row OutboxRow, triggers []Trigger) {
		kept := make([]storedTrigger, len(triggers))
		for i, t := range triggers {
			kept[i] = storedTrigger{t.Facet, t.Backoff.Microseconds(), t.Quiet.Microseconds(), t.MaxDelay.Microseconds(), t.Params}
		}
		text, wrong := json.Marshal(kept)
		row.Triggers, err = string(text), errors.Join(err, wrong)
		rows = append(rows, row)
	}
	var soon []Trigger
	for _, t := range w.Outbox.Triggers {
		if t.Quiet <= 0 {
			soon = append(soon, t)
		}
	}
	if w.Outbox.PublishChange || len(soon) > 0 {
		first := base
		first.PublishChange = w.Outbox.PublishChange
		add(first, soon)
	}
	for _, t := range w.Outbox.Triggers {
		if t.Quiet > 0 {
			row := base
			row.QuietFacet, row.Due, row.Latest = t.Facet, at+t.Quiet.Microseconds(), at+max(t.MaxDelay, t.Quiet).Microseconds()
			add(row, []Trigger{t})
		}
	}
	return rows, err
}

// ScanOutboxEvent fills the effect by scan, which is a row's Scan.
func (e *OutboxEvent) ScanOutboxEvent(scan func(...any) error) error {
	var at int64
	var before, after, text []byte
	err := scan(&e.ID, &e.Entity.Source, &e.Entity.Facet, &e.Entity.Key, &e.Version, &at, &before, &after, &e.PublishChange, &text)
	if err != nil {
		return err
	}
	var triggers []storedTrigger
	if err := json.Unmarshal(text, &triggers); err != nil {
		return fmt.Errorf("the triggers of effect %d of %s: %w", e.ID, e.Entity, err)
	}
	e.At, e.Before, e.After, e.Triggers = fromMicros(at), Hash{}, Hash{}, nil
	copy(e.Before[:], before)
	copy(e.After[:], after)
	for _, t := range triggers {
		e.Triggers = append(e.Triggers, Trigger{
			Facet: t.Facet, Backoff: time.Duration(t.Backoff) * time.Microsecond, Params: t.Params,
			Quiet: time.Duration(t.Quiet) * time.Microsecond, MaxDelay: time.Duration(t.MaxDelay) * time.Microsecond,
		})
	}
	return nil
}
