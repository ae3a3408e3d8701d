package collection

import (
	"context"

	"github.com/freshet/freshet/store"
)

const (
	// deleteQuietEvent deletes the undelivered event of a trigger with a quiet time, because the event of a
	// later change replaces it. Argument: quiet_facet.
	deleteQuietEvent = `DELETE FROM outbox WHERE source = $1 AND facet = $2 AND key = $3 AND quiet_facet = $4
RETURNING before, latest_at`
	insertEvents = `INSERT INTO outbox (source, facet, key, version, at, before, after, publish_change, triggers, due_at, quiet_facet, latest_at, item)`
)

// addEvents adds the outbox events of a change of the collection, or of its next page.
func (w *write) addEvents(ctx context.Context, rows []store.OutboxRow) error {
	for _, r := range rows {
		if r.QuietFacet != "" {
			err := w.tx.Query(ctx, func(scan func(...any) error) error {
				var before []byte
				err := scan(&before, &r.Latest)
				r.Before, r.Due = append([]byte{}, before...), min(r.Due, r.Latest)
				return err
			}, deleteQuietEvent, key(w.Entity, r.QuietFacet)...)
			if err != nil {
				return err
			}
		}
		w.insertEvent(r, "")
	}
	return nil
}

// insertEvent adds the row of an outbox event. item is the id of the changed item; empty: the event is about
// the collection.
func (w *write) insertEvent(r store.OutboxRow, item string) {
	w.events = append(w.events, []any{w.Page.Version, micros(w.Page.Began), r.Before, r.After, r.PublishChange, r.Triggers, r.Due, r.QuietFacet, r.Latest, item})
}

func hashBytes(h store.Hash) []byte {
	if h == (store.Hash{}) {
		return []byte{}
	}
	return h[:]
}
