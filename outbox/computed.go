package outbox

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// delayComputed stores an outbox event for each target of a derived facet. The event requests the
// target after Trigger.Every. If such an event waits already, its due time stays unchanged. So changes
// of many inputs cause one computation. It returns the targets of derived facets.
func (r *Relay) delayComputed(ctx context.Context, targets []*target, now time.Time) (computed []*target, err error) {
	var events []store.Write
	for _, t := range targets {
		if !t.computed {
			continue
		}
		every := t.triggers[0].Every
		computed = append(computed, t)
		events = append(events, store.Write{Entity: t.request.Entity, CheckedAt: now, Outbox: store.OutboxEvents{Triggers: []store.Trigger{
			{Facet: t.request.Entity.Facet, Quiet: every, MaxDelay: every},
		}}})
	}
	if len(events) == 0 {
		return nil, nil
	}
	return computed, r.store.WriteOutbox(ctx, events)
}
