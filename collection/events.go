package collection

import (
	"context"
	"encoding/json"

	"github.com/freshet/freshet/store"
)

const (
	// deleteQuietEvent deletes the undelivered event of a trigger with a quiet time, because the event of a
	// later change replaces it. Argument: quiet_facet.
	deleteQuietEvent = `DELETE FROM outbox WHERE source = $1 AND facet = $2 AND key = $3 AND quiet_facet = $4
RETURNING before, latest_at`

	// deletePageRequest deletes the outbox event that requests the next page. deleteLeftRequest deletes
	// this event only if no walk is open.
	deletePageRequest = `DELETE FROM outbox WHERE source = $1 AND facet = $2 AND key = $3 AND quiet_facet = '` + store.PageRequest + `'`
	deleteLeftRequest = deletePageRequest + `
AND NOT EXISTS (SELECT 1 FROM collections c WHERE c.source = $1 AND c.facet = $2 AND c.key = $3 AND c.walk <> 0)`
)

// addEvents adds the outbox events of a change of the collection.
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

// insertEvent adds the row of an outbox event. `item` is the id of the changed item; empty means that
// the event is about the collection.
func (w *write) insertEvent(r store.OutboxRow, item string) {
	w.insert(tableEvents, w.Entity, w.Page.Version, store.ToMicros(w.Page.Began), r.Before, r.After, r.PublishChange, r.Triggers, r.Due, r.QuietFacet, r.Latest, item)
}

// requestNext adds the outbox event that requests the next page, or another walk
// (Collections.WalkAgain). It adds none for a page with a Step, because the poller of runs requests the
// next page then.
func (w *write) requestNext(ctx context.Context) error {
	next, kept := store.Trigger{Facet: w.Entity.Facet, Params: w.Params}, ""
	switch {
	case w.after.Walk.Open() && w.Step != nil:
		return nil
	case w.after.Walk.Open():
		next.Page, kept = w.after.Walk.Name(), store.PageRequest
	case w.Before.Walk.Open():
		written, err := w.tx.Exec(ctx, store.Statement{Text: takeWalkAgain, Args: key(w.Entity, w.Before.Walk.ID)})
		if err != nil || written[0] == 0 {
			return err
		}
	default:
		return nil
	}
	triggers, err := json.Marshal([]store.Trigger{next})
	w.insertEvent(store.OutboxRow{Before: []byte{}, After: []byte{}, Triggers: string(triggers), Due: store.ToMicros(w.Page.Began), QuietFacet: kept}, "")
	return err
}

func hashBytes(h store.Hash) []byte {
	if h == (store.Hash{}) {
		return []byte{}
	}
	return h[:]
}
