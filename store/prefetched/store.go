package prefetched

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// Store has the operations of a database's store on prefetched entities that are the same statements in
// both databases.
type Store struct{ db shared.DB }

// EntityBatch is the maximum number of entities that one transaction writes. It bounds how long other
// transactions wait for the rows.
const EntityBatch = 5000

// NewStore returns a Store in a database.
func NewStore(db shared.DB) Store { return Store{db} }

// FinishClaim deletes a claim after all its requests have been enqueued. It has no effect on a
// claim that was taken over or deleted.
func (s Store) FinishClaim(ctx context.Context, id string) error {
	if _, err := s.db.Exec(ctx, DeleteClaim, id); err != nil {
		return fmt.Errorf("finish claim %s: %w", id, err)
	}
	return nil
}

// RenewClaim extends a claim to the time `until`; `held` is false if the claim was taken over or
// deleted.
func (s Store) RenewClaim(ctx context.Context, id string, until time.Time) (held bool, err error) {
	written, err := s.db.Exec(ctx, RenewClaim, id, until.UnixMicro())
	if err != nil {
		return false, fmt.Errorf("renew claim %s: %w", id, err)
	}
	return written > 0, nil
}

// NextEntityTime returns the earliest due time of the source's entities; zero if it has none.
func (s Store) NextEntityTime(ctx context.Context, source string) (time.Time, error) {
	at, err := shared.ReadTime(ctx, s.db, SelectNextDueEntity, source)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next due time of entities of %s: %w", source, err)
	}
	return at, nil
}

// Price returns the current price of a source's calls and the time when it was set; zero if it was
// never set.
func (s Store) Price(ctx context.Context, source string) (price float64, at time.Time, err error) {
	var us int64
	found, err := shared.ReadRow(ctx, s.db, func(scan func(...any) error) error { return scan(&price, &us) }, SelectPrice, source)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("read the price of %s: %w", source, err)
	}
	if !found {
		return 0, time.Time{}, nil
	}
	return price, time.UnixMicro(us).UTC(), nil
}

// SetPrice writes the price, unless the stored price was set less than minInterval before the time
// `at`. It reports whether it wrote the price. If several calls run concurrently, only one of them
// writes its price.
func (s Store) SetPrice(ctx context.Context, source string, price float64, at time.Time, minInterval time.Duration) (set bool, err error) {
	written, err := s.db.Exec(ctx, SetPrice, source, price, at.UnixMicro(), at.Add(-minInterval).UnixMicro())
	if err != nil {
		return false, fmt.Errorf("write the price of %s: %w", source, err)
	}
	return written > 0, nil
}

// TierBacklogs counts the due entities of a source by facet and tier. It counts at most `limit`
// entities, beginning with the earliest due time. Facets and tiers without due entities are left out.
func (s Store) TierBacklogs(ctx context.Context, source string, now time.Time, limit int) ([]TierBacklog, error) {
	all, err := shared.Collect(ctx, s.db, (*TierBacklog).ScanTierBacklog, SelectTierBacklogs, source, now.UnixMicro(), limit)
	if err != nil {
		return nil, fmt.Errorf("count due rows of %s: %w", source, err)
	}
	return all, nil
}

// Entities returns at most `limit` registered entities that match the filter, in the order of
// source, facet and key. The list starts after the given entity.
func (s Store) Entities(ctx context.Context, filter Filter, after schemas.Entity, limit int) ([]RegisteredEntity, error) {
	query, args := filter.SelectEntities(after, limit)
	all, err := shared.Collect(ctx, s.db, (*RegisteredEntity).ScanEntity, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list entities: %w", err)
	}
	return all, nil
}

// BringForward makes entities due earlier. An entity that is due earlier already, or is not
// registered, is not changed.
func (s Store) BringForward(ctx context.Context, all []DueTime) error {
	var statements []store.Statement
	for _, d := range SortDueTimes(all) {
		statements = append(statements, store.Statement{Text: BringForward, Args: []any{d.Entity.Source, d.Entity.Facet, d.Entity.Key, d.At.UnixMicro()}})
	}
	if err := s.db.InTx(ctx, func(tx store.Tx) error { return tx.Commit(ctx, statements...) }); err != nil {
		return fmt.Errorf("make %d entities due earlier: %w", len(all), err)
	}
	return nil
}

// EnableEntities enables or disables entities and returns how many it changed. If keys is not nil,
// it changes the entities with these keys of the filter's source and facet; otherwise all entities
// that match the filter. Each batch of EntityBatch rows is one transaction.
func (s Store) EnableEntities(ctx context.Context, filter Filter, keys []string, enabled bool) (int, error) {
	n, err := filter.SetEnabled(keys, enabled, EntityBatch, func(f Filter, after schemas.Entity, limit int) ([]RegisteredEntity, error) {
		return s.Entities(ctx, f, after, limit)
	}, func(keys []schemas.Entity) (int, error) {
		return s.eachEntity(ctx, keys, SetEntityEnabled, enabled)
	})
	if err != nil {
		return n, fmt.Errorf("set enabled = %v for entities: %w", enabled, err)
	}
	return n, nil
}

// PinEntities pins entities to a tier and returns how many it changed. Each batch of EntityBatch
// rows is one transaction.
func (s Store) PinEntities(ctx context.Context, keys []schemas.Entity, tier Tier) (int, error) {
	n, err := s.eachEntity(ctx, keys, PinEntity, int64(tier))
	if err != nil {
		return n, fmt.Errorf("pin %d entities: %w", len(keys), err)
	}
	return n, nil
}

// UnpinEntities unpins entities, so that reads change their tier again, and returns how many were
// pinned.
func (s Store) UnpinEntities(ctx context.Context, keys []schemas.Entity) (int, error) {
	n, err := s.eachEntity(ctx, keys, UnpinEntity)
	if err != nil {
		return n, fmt.Errorf("unpin %d entities: %w", len(keys), err)
	}
	return n, nil
}

// eachEntity runs a statement for each entity, in transactions of at most EntityBatch entities, and
// returns the number of written rows.
func (s Store) eachEntity(ctx context.Context, keys []schemas.Entity, statement string, args ...any) (total int, err error) {
	for batch := range slices.Chunk(SortEntities(keys), EntityBatch) {
		statements := make([]store.Statement, len(batch))
		for i, e := range batch {
			statements[i] = store.Statement{Text: statement, Args: append([]any{e.Source, e.Facet, e.Key}, args...)}
		}
		var written []int64
		err := s.db.InTx(ctx, func(tx store.Tx) (err error) {
			written, err = tx.Exec(ctx, statements...)
			return err
		})
		if err != nil {
			return total, err
		}
		for _, n := range written {
			total += int(n)
		}
	}
	return total, nil
}

// DeleteEntity unregisters an entity and reports whether it was registered. Its snapshot is kept.
func (s Store) DeleteEntity(ctx context.Context, e schemas.Entity) (existed bool, err error) {
	written, err := s.db.Exec(ctx, shared.DeleteEntity, e.Source, e.Facet, e.Key)
	if err != nil {
		return false, fmt.Errorf("delete the entity %s: %w", e, err)
	}
	return written > 0, nil
}
