package postgres

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
)

const selectRegistrations = `SELECT i.n, ` + prefetched.EntityColumns + `
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT * FROM entities e WHERE e.source = i.source AND e.facet = i.facet AND e.key = i.key LIMIT 1) e`

// Registrations returns the registrations of the entities, in the given order. The element of an
// entity that is not registered is nil.
func (s prefetchedStore) Registrations(ctx context.Context, keys []schemas.Entity) ([]*prefetched.RegisteredEntity, error) {
	all := make([]*prefetched.RegisteredEntity, len(keys))
	err := forEachEntity(ctx, readFrom(s.pool), selectRegistrations, keys, func(found *prefetched.RegisteredEntity, scan func(...any) error) error {
		return found.ScanEntity(scan)
	}, func(i int, found prefetched.RegisteredEntity) { all[i] = &found })
	if err != nil {
		return nil, fmt.Errorf("read the registrations of %d entities: %w", len(keys), err)
	}
	return all, nil
}

// SampleEntities returns at most `limit` enabled entities of a source, chosen at random. It reads
// random pages of the table: as many as contain about twice as many rows as the limit.
func (s prefetchedStore) SampleEntities(ctx context.Context, source string, limit int) ([]prefetched.RegisteredEntity, error) {
	var rows float64
	if err := s.pool.QueryRow(ctx, `SELECT reltuples FROM pg_class WHERE oid = 'entities'::regclass`).Scan(&rows); err != nil {
		return nil, fmt.Errorf("read the size of the table entities: %w", err)
	}
	percent := min(100, 200*float64(limit)/max(1, rows))
	all, err := shared.Collect(ctx, runner{s.transactions}, (*prefetched.RegisteredEntity).ScanEntity,
		fmt.Sprintf("SELECT "+prefetched.EntityColumns+" FROM entities e TABLESAMPLE SYSTEM (%f)"+" WHERE e.source = $1 AND e.enabled LIMIT $2", percent), source, limit)
	if err != nil {
		return nil, fmt.Errorf("read a sample of the entities of %s: %w", source, err)
	}
	return all, nil
}
