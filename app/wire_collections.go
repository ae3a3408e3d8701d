package app

import (
	"context"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// snapshotStore is the part of the database with snapshots.
type snapshotStore interface {
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error)
	EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error)
}

// queryStore is the database as the query service uses it: snapshots, and items of collections.
type queryStore struct {
	snapshotStore
	*collection.Collections
}

// newQueryStore returns the database as the query service uses it.
func newQueryStore(p parts) queryStore { return queryStore{p.store, collection.New(p.store)} }
