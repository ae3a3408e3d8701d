package storetest

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Backlogs counts the due entities, retries and outbox rows of a source.
type Backlogs interface {
	// TierBacklogs counts at most `limit` due entities, earliest first, by facet and tier.
	TierBacklogs(ctx context.Context, source string, now time.Time, limit int) ([]prefetched.TierBacklog, error)
	// RetryBacklog and OutboxBacklog count at most `limit` rows that are due at the given time.
	RetryBacklog(ctx context.Context, source string, by time.Time, limit int) (store.Backlog, error)
	OutboxBacklog(ctx context.Context, source string, by time.Time, limit int) (store.Backlog, error)
}

func testBacklogs(b suite) {
	b.dueTiers()
	b.dueRetriesAndEvents()
}

func (b suite) dueTiers() {
	b.Helper()
	are := func(now int64, limit int, want ...prefetched.TierBacklog) {
		b.Helper()
		if got, err := b.store.TierBacklogs(b.Context(), entity.Source, at(now), limit); err != nil || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			b.Errorf("TierBacklogs(limit %d) at %d: got %+v, %v, want %+v", limit, now, got, err, want)
		}
	}
	are(100, 10)
	var all []prefetched.RegisteredEntity
	add := func(e schemas.Entity, tier prefetched.Tier, due int64, enabled bool) {
		r := registered(e, due)
		r.Tier, r.Enabled = tier, enabled
		all = append(all, r)
	}
	for i := range int64(4) {
		add(key(fmt.Sprint("hot", i)), prefetched.Hot, 10+i, true)
		add(key(fmt.Sprint("cold", i)), prefetched.Cold, 30+10*i, true)
	}
	add(key("off"), prefetched.Warm, 1, false)
	add(schemas.Entity{Source: entity.Source, Facet: "b", Key: "x"}, prefetched.Warm, 11, true)
	add(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "x"}, prefetched.Warm, 2, true)
	b.register(len(all), all...)
	warm := prefetched.TierBacklog{Facet: "b", Tier: prefetched.Warm, Backlog: store.Backlog{Count: 1, Oldest: at(11)}, Last: at(11)}
	hot := prefetched.TierBacklog{Facet: entity.Facet, Tier: prefetched.Hot, Backlog: store.Backlog{Count: 4, Oldest: at(10)}, Last: at(13)}
	are(9, 10)
	are(45, 10, warm, hot, prefetched.TierBacklog{Facet: entity.Facet, Tier: prefetched.Cold, Backlog: store.Backlog{Count: 2, Oldest: at(30)}, Last: at(40)})
	hot.Count, hot.Last = 2, at(11)
	are(45, 3, warm, hot) // with the limit 3, only the three entities that are due first are counted
}

func (b suite) wantBacklog(count func(context.Context, string, time.Time, int) (store.Backlog, error), by int64, limit int, want store.Backlog) {
	b.Helper()
	if got, err := count(b.Context(), entity.Source, at(by), limit); err != nil || got != want {
		b.Errorf("backlog (limit %d) at %d: got %+v, %v, want %+v", limit, by, got, err, want)
	}
}

func (b suite) dueRetriesAndEvents() {
	b.Helper()
	b.wantBacklog(b.store.RetryBacklog, 1000, 10, store.Backlog{})
	b.wantBacklog(b.store.OutboxBacklog, 1000, 10, store.Backlog{})
	for i := range int64(5) {
		status := failing(key(fmt.Sprint(i)), 1)
		status.Until = at(20 + 10*i)
		b.fail(status)
	}
	ended := failing(key("ended"), 1)
	ended.State, ended.Until = store.Failed, at(1)
	other := failing(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "x"}, 1)
	other.Until = at(2)
	b.fail(ended, other)
	b.wantBacklog(b.store.RetryBacklog, 19, 10, store.Backlog{})
	b.wantBacklog(b.store.RetryBacklog, 40, 10, store.Backlog{Count: 3, Oldest: at(20)})
	b.wantBacklog(b.store.RetryBacklog, 1000, 4, store.Backlog{Count: 4, Oldest: at(20)})
	b.claimRetries(entity.Source, 25, 600, 1) // the claimed retry is not due again before its claim ends
	b.wantBacklog(b.store.RetryBacklog, 40, 10, store.Backlog{Count: 2, Oldest: at(30)})

	b.write([]store.Result{store.Changed, store.Changed, store.Changed},
		withOutbox(both, content(key("a"), 50, "x")), withOutbox(published, content(key("b"), 60, "y")), content(key("c"), 55, "z"))
	b.wantBacklog(b.store.OutboxBacklog, 55, 10, store.Backlog{Count: 1, Oldest: at(50)})
	b.wantBacklog(b.store.OutboxBacklog, 70, 10, store.Backlog{Count: 2, Oldest: at(50)})
	b.wantBacklog(b.store.OutboxBacklog, 70, 1, store.Backlog{Count: 1, Oldest: at(50)})
}
