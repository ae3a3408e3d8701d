package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
)

const selectRegistration = `SELECT ` + prefetched.EntityColumns + ` FROM entities e WHERE e.source = $1 AND e.facet = $2 AND e.key = $3`

// Registrations returns the registrations of the entities, in the given order. The element of an
// entity that is not registered is nil.
func (s prefetchedStore) Registrations(ctx context.Context, keys []schemas.Entity) ([]*prefetched.RegisteredEntity, error) {
	all := make([]*prefetched.RegisteredEntity, len(keys))
	for i, e := range keys {
		var found prefetched.RegisteredEntity
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

// SampleEntities returns at most `limit` enabled entities of a source.
func (s prefetchedStore) SampleEntities(ctx context.Context, source string, limit int) ([]prefetched.RegisteredEntity, error) {
	all, err := shared.Collect(ctx, runner{s.transactions}, (*prefetched.RegisteredEntity).ScanEntity, "SELECT "+prefetched.EntityColumns+" FROM entities e"+" WHERE e.source = $1 AND e.enabled LIMIT $2", source, limit)
	if err != nil {
		return nil, fmt.Errorf("read a sample of the entities of %s: %w", source, err)
	}
	return all, nil
}
