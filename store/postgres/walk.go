package postgres

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const selectRegistrations = `SELECT i.n, ` + store.EntityColumns + `
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT * FROM entities e WHERE e.source = i.source AND e.facet = i.facet AND e.key = i.key LIMIT 1) e`

// StatesInRange returns at most `limit` states of a facet in the order of their keys.
func (s *Store) StatesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.State, error) {
	query, args := f.SelectStates(after, limit)
	all, err := collect(ctx, s.pool, f.ScanStateInRange, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the states of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// StatusesInRange returns at most `limit` statuses of a facet in the order of their keys.
func (s *Store) StatusesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.Status, error) {
	query, args := f.SelectStatuses(after, limit)
	all, err := collect(ctx, s.pool, (*store.Status).ScanStatus, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the statuses of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// Registrations returns the registrations of the entities, in the given order. The element of an
// entity that is not registered is nil.
func (s *Store) Registrations(ctx context.Context, keys []schemas.Entity) ([]*store.RegisteredEntity, error) {
	all := make([]*store.RegisteredEntity, len(keys))
	err := forEachEntity(ctx, s.pool, selectRegistrations, keys, func(found *store.RegisteredEntity, scan func(...any) error) error {
		return found.ScanEntity(scan)
	}, func(i int, found store.RegisteredEntity) { all[i] = &found })
	if err != nil {
		return nil, fmt.Errorf("read the registrations of %d entities: %w", len(keys), err)
	}
	return all, nil
}
