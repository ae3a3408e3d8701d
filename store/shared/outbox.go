package shared

import (
	"encoding/json"
	"fmt"

	"github.com/freshet/freshet/store"
)

// Statements for the outbox.
const (
	// OutboxColumns are the columns that ScanOutboxEvent reads.
	OutboxColumns = `e.id, e.source, e.facet, e.key, e.version, e.at, e.before, e.after, e.publish_change, e.triggers, e.item, e.run`

	// DueOutboxEvents is the end of a query of the table outbox. The query must give the table the
	// alias e. Arguments: source, time, limit.
	DueOutboxEvents = ` FROM outbox e WHERE e.source = $1 AND e.due_at <= $2 ORDER BY e.due_at, e.id LIMIT $3`

	// PostponePage are the columns that postpone the event of a requested page. See store.PageRequest.
	PostponePage = `due_at = due_at + 570000000, at = due_at + 570000000`

	// deleteQuietTriggers deletes the undelivered events of triggers with a quiet time that a change of
	// the entity has caused, or that would refresh the entity. Arguments: source, facet, key.
	deleteQuietTriggers = `DELETE FROM outbox WHERE source = $1 AND key = $3 AND quiet_facet <> '' AND (facet = $2 OR quiet_facet = $2)`

	// SelectNextOutboxTime returns the earliest due time in microseconds, or no row. Argument:
	// source.
	SelectNextOutboxTime = `SELECT due_at FROM outbox WHERE source = $1 ORDER BY due_at, id LIMIT 1`
)

// ScanOutboxEvent reads the event from a row.
func ScanOutboxEvent(e *store.OutboxEvent, scan func(...any) error) error {
	var at int64
	var before, after, text []byte
	err := scan(&e.ID, &e.Entity.Source, &e.Entity.Facet, &e.Entity.Key, &e.Version, &at, &before, &after, &e.PublishChange, &text, &e.Item, &e.Run)
	if err != nil {
		return err
	}
	e.At, e.Before, e.After, e.Triggers = store.FromMicros(at), store.Hash{}, store.Hash{}, nil
	copy(e.Before[:], before)
	copy(e.After[:], after)
	if err := json.Unmarshal(text, &e.Triggers); err != nil {
		return fmt.Errorf("decode the triggers of outbox event %d of %s: %w", e.ID, e.Entity, err)
	}
	if len(e.Triggers) == 0 {
		e.Triggers = nil
	}
	return nil
}
