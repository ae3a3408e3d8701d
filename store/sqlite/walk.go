package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const selectRegistration = `SELECT ` + store.EntityColumns + ` FROM entities e WHERE e.source = $1 AND e.facet = $2 AND e.key = $3`

// StatesInRange returns at most `limit` states of a facet in the order of their keys.
func (s *Store) StatesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.State, error) {
	query, args := f.SelectStates(after, limit)
	all, err := collect(ctx, s.db, f.ScanStateInRange, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the states of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// StatusesInRange returns at most `limit` statuses of a facet in the order of their keys.
func (s *Store) StatusesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.Status, error) {
	query, args := f.SelectStatuses(after, limit)
	all, err := collect(ctx, s.db, (*store.Status).ScanStatus, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the statuses of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// Registrations returns the registrations of the entities, in the given order. The element of an
// entity that is not registered is nil.
func (s *Store) Registrations(ctx context.Context, keys []schemas.Entity) ([]*store.RegisteredEntity, error) {
	all := make([]*store.RegisteredEntity, len(keys))
	for i, e := range keys {
		var found store.RegisteredEntity
		err := found.ScanEntity(s.db.QueryRowContext(ctx, selectRegistration, e.Source, e.Facet, e.Key).Scan)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the registration of %s: %w", e, err)
		}
		all[i] = &found
	}
	return all, nil
}
