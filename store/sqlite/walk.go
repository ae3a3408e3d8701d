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

// lists implements the queries of the console's lists and charts. Store embeds it.
type lists struct{ db *sql.DB }

// Registrations returns the registrations of the entities, in the given order. The element of an
// entity that is not registered is nil.
func (l lists) Registrations(ctx context.Context, keys []schemas.Entity) ([]*store.RegisteredEntity, error) {
	all := make([]*store.RegisteredEntity, len(keys))
	for i, e := range keys {
		var found store.RegisteredEntity
		err := found.ScanEntity(l.db.QueryRowContext(ctx, selectRegistration, e.Source, e.Facet, e.Key).Scan)
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

// SampleEntities returns at most `limit` enabled entities of a source.
func (l lists) SampleEntities(ctx context.Context, source string, limit int) ([]store.RegisteredEntity, error) {
	all, err := selectEntities(ctx, l.db, "SELECT "+store.EntityColumns+" FROM entities e"+" WHERE e.source = $1 AND e.enabled LIMIT $2", source, limit)
	if err != nil {
		return nil, fmt.Errorf("read a sample of the entities of %s: %w", source, err)
	}
	return all, nil
}
