package store

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
)

// OutboxEvents are the messages and triggers that a change causes. They are inserted in the
// transaction that stores the change (transactional outbox): none is lost, and none is delivered
// for a change that was rolled back.
type OutboxEvents struct {
	// PublishChange is set if the change is published to the source's change topic.
	PublishChange bool
	// Triggers refresh other entities of the source.
	Triggers []Trigger
}

// Trigger says that a change of one entity refreshes another entity: another facet of the same key, the
// target of a link, or an entity of a derived facet. It is stored as JSON, with durations in
// nanoseconds.
type Trigger struct {
	Facet string `json:"facet"` // name of the facet that is refreshed
	// Key is the key of the refreshed entity if the trigger is a link, or if the refreshed facet is
	// derived. Empty means the key of the changed entity.
	Key string `json:"key,omitempty"`
	// Depth is the depth of the request that refreshes the entity (schemas.UpdateRequest.Depth). It is
	// positive only if the trigger is a link.
	Depth int `json:"depth,omitempty"`
	// Backoff is the minimum time from the last check of the refreshed entity to this refresh. For a
	// link it is the time for which the target counts as fresh.
	Backoff time.Duration `json:"backoff"`
	// Quiet delays the refresh until no change has occurred for this long, but at most until MaxDelay
	// after the first change. 0 means no delay.
	Quiet    time.Duration `json:"quiet,omitempty"`
	MaxDelay time.Duration `json:"maxDelay,omitempty"`
	// Every is set if the refreshed facet is derived: it is the time from the first change of any input
	// to the request. In contrast, Quiet counts from the last change of one entity.
	Every time.Duration `json:"every,omitempty"`
	// OnReplace is set for the trigger of an alias: it refreshes a facet that takes a param from the
	// changed facet. It fires only if the change replaced content, and if the other facet is stored.
	OnReplace bool `json:"onReplace,omitempty"`
	// Params are the parameters of the refresh's request.
	Params map[string]string `json:"params,omitempty"`
	// Lane is the lane of the request; empty means LOW.
	Lane schemas.Lane `json:"lane,omitempty"`
	// Page is set if the trigger requests the next page of a collection: it is the name of this page.
	// Empty means that the trigger refreshes an entity.
	Page string `json:"page,omitempty"`
}

// Fires reports whether the trigger refreshes its target now. The parameter `state` is the state of
// that target. The trigger fires if the target was never checked, or not within Backoff. Without a
// Backoff it always fires, also if the clock of the worker that checked the target is ahead. A trigger
// with OnReplace does not fire if the target was never checked. A link also fires if the target is not
// found: its hold rejects the request while the not-found result is valid. A trigger with Page always
// fires.
func (t Trigger) Fires(state State, now time.Time) bool {
	switch {
	case t.Page != "":
		return true
	case t.OnReplace && state.CheckedAt.IsZero():
		return false
	case t.Depth > 0 && state.NotFound:
		return true
	}
	return t.Backoff <= 0 || state.CheckedAt.IsZero() || now.Sub(state.CheckedAt) >= t.Backoff
}

// Empty reports whether there is neither a message nor a trigger.
func (e OutboxEvents) Empty() bool { return !e.PublishChange && len(e.Triggers) == 0 }

// OutboxEvent is a change whose message and triggers are not delivered yet.
type OutboxEvent struct {
	ID      int64 // assigned by the database; later events of an entity have higher IDs
	Entity  schemas.Entity
	Version int64
	At      time.Time // start of the fetch that returned the change: the write's CheckedAt
	// Before and After are the hashes of the replaced and of the new content. Before is zero if
	// there was no content.
	Before, After Hash
	// Item is the id of the changed item of a collection; empty means that the entity itself has
	// changed. If the item was deleted, After is zero.
	Item string
	// Run is set if the event is the end of a run: it is the value of the Kafka record, and Entity.Key
	// is the id of the run. Empty means that the event is a change.
	Run string
	// A trigger with a quiet time has its own OutboxEvent. Further changes in that time replace
	// the event: it gets the last change's version and a new ID, and keeps the Before of the first
	// change.
	OutboxEvents
}

// ReadyAt returns the earliest time of delivery: the time of the change, or the end of the
// quiet time after the change.
func (e OutboxEvent) ReadyAt() time.Time {
	if len(e.Triggers) == 1 {
		return e.At.Add(e.Triggers[0].Quiet)
	}
	return e.At
}

// Statements for the outbox, shared by both databases.
const (
	// InsertOutboxEvent is the start of a statement. The rows to insert follow it, with the fields
	// of OutboxRow and OutboxEvent.Item.
	InsertOutboxEvent = `INSERT INTO outbox AS e (source, facet, key, version, at, before, after, publish_change, triggers, due_at, quiet_facet, latest_at, item)`

	// PageRequest is the value of quiet_facet of an event that requests the next page of a collection.
	// No facet has this name. The delivery of such an event does not delete it, because Kafka can lose
	// the record of the request. Instead PostponePage moves its due time to ten minutes after the claim
	// (the claim itself has moved it by 30 s), and then the page is requested again. The
	// transaction that stores the page deletes the event.
	PageRequest = `#page`
)

// OutboxRow contains the values that the SQL statement InsertOutboxEvent inserts for one stored change.
type OutboxRow struct {
	Before, After []byte
	PublishChange bool
	Triggers      string // the triggers of the event as JSON
	// Due is when the event can be delivered, in microseconds. QuietFacet is the facet that a
	// trigger with a quiet time refreshes, or PageRequest; empty for other rows. Further changes in the quiet
	// time move Due to a later time, but never after Latest, which is also in microseconds.
	Due, Latest int64
	QuietFacet  string
}

// OutboxRows returns the outbox rows of a write that changed content: one row for its message and its
// immediate triggers, and one row for each trigger with a quiet time. The parameter `before` is the
// hash of the replaced content.
func (w Write) OutboxRows(before Hash) (rows []OutboxRow, err error) {
	at := w.CheckedAt.UnixMicro()
	base := OutboxRow{Before: []byte{}, After: w.Hash[:], Due: at}
	if before != (Hash{}) {
		base.Before = before[:]
	}
	add := func(row OutboxRow, triggers []Trigger) {
		text, marshalErr := json.Marshal(append([]Trigger{}, triggers...))
		row.Triggers, err = string(text), errors.Join(err, marshalErr)
		rows = append(rows, row)
	}
	var immediate []Trigger
	for _, t := range w.Outbox.Triggers {
		if t.Quiet <= 0 && (!t.OnReplace || before != (Hash{})) {
			immediate = append(immediate, t)
		}
	}
	if w.Outbox.PublishChange || len(immediate) > 0 {
		first := base
		first.PublishChange = w.Outbox.PublishChange
		add(first, immediate)
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
