package app

import (
	"context"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// snapshotStore reads snapshots of the database.
type snapshotStore interface {
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error)
	EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error)
}

// queryStore is the store of the query service: snapshots, and items of collections.
type queryStore struct {
	snapshotStore
	*collection.Collections
}

// newQueryStore returns the store of the query service.
func newQueryStore(p parts) queryStore { return queryStore{p.store, collection.New(p.store)} }
