package entities

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Deps are the dependencies of Entities.
type Deps struct {
	Store    Store
	States   StateReader
	Sources  map[string]Source // the configured sources, by name
	Notifier Notifier
	// Actor returns the name of the client that sent the request. It is stored in the audit.
	Actor func(*http.Request) string
	Now   func() time.Time
	Log   *slog.Logger
}

// Store holds the registered entities and the snapshots. Its implementations are in package store.
type Store interface {
	Registrations
	Pins
	Reads
	Deletion
}

// Registrations keeps the registered entities.
type Registrations interface {
	// RegisterEntities registers entities, and returns how many were new. For an entity that is
	// registered already it replaces params, pinned and enabled. It replaces the tier only if the
	// new registration is pinned.
	RegisterEntities(ctx context.Context, all []prefetched.RegisteredEntity) (added int, err error)
	// Entities returns at most "limit" registered entities that match the filter, in the order of
	// source, facet and key. The result starts after the entity "after".
	Entities(ctx context.Context, filter prefetched.Filter, after schemas.Entity, limit int) ([]prefetched.RegisteredEntity, error)
	// CountEntities counts the registered entities that match the filter. If exact is false, n is
	// an estimate.
	CountEntities(ctx context.Context, filter prefetched.Filter) (n int64, exact bool, err error)
	// EnableEntities enables or disables the entities with these keys, in the filter's source and
	// facet. It returns how many registrations it changed.
	EnableEntities(ctx context.Context, filter prefetched.Filter, keys []string, enabled bool) (int, error)
}

// Pins pins and unpins the tiers of entities.
type Pins interface {
	// PinEntities and UnpinEntities return how many registrations they changed.
	PinEntities(ctx context.Context, of []schemas.Entity, tier prefetched.Tier) (int, error)
	UnpinEntities(ctx context.Context, of []schemas.Entity) (int, error)
}

// Reads records reads, and the due times that follow from them.
type Reads interface {
	// BringForward moves the due times of entities to earlier times. It ignores an entity whose
	// stored due time is already earlier.
	BringForward(ctx context.Context, all []prefetched.DueTime) error
	// ObserveReads adds the numbers of reads to the registered entities, and registers unknown
	// entities. For each entity it calls `risen` with the numbers of reads before and after the
	// addition. If the result is true, the entity becomes due at once.
	ObserveReads(ctx context.Context, reads []prefetched.EntityReads, risen prefetched.RefreshNowFunc) error
}

// Deletion deletes snapshots, and writes audit entries.
type Deletion interface {
	// DeleteSnapshot deletes the snapshot and the registration of an entity, and reports whether
	// the snapshot or the registration existed. It writes the audit entry in the same transaction.
	DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (was bool, err error)
	// WriteAudit writes an audit entry.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
}

// Source is the part of a source's configuration that Entities needs.
type Source struct {
	Facets map[string][]string // the names of the params that each facet accepts, by the name of the facet
	Keys   Keys
	// Fold returns the canonical spelling of a key of a facet.
	Fold     func(facet, key string) string
	Schedule Schedule
}

// fold returns the entity with the canonical spelling of its key. A key of an unknown source or facet
// is returned as it is.
func fold(sources map[string]Source, e schemas.Entity) schemas.Entity {
	if src, known := sources[e.Source]; known {
		e.Key = src.Fold(e.Facet, e.Key)
	}
	return e
}

// foldAll replaces the keys by their canonical spelling.
func foldAll(sources map[string]Source, source, facet string, keys []string) {
	for i, key := range keys {
		keys[i] = fold(sources, schemas.Entity{Source: source, Facet: facet, Key: key}).Key
	}
}

// Keys checks whether a facet accepts a key.
type Keys interface {
	CheckKey(facet, key string) error
}

// Schedule decides when an entity is prefetched.
type Schedule interface {
	// Prefetches reports whether the facet is prefetched.
	Prefetches(facet string) bool
	// FirstDue returns the first due time of an entity that is registered now. prefetched is false
	// if its facet is not prefetched.
	FirstDue(r prefetched.RegisteredEntity, now time.Time) (due time.Time, prefetched bool)
	// ReadsMakeDue reports whether an entity becomes due at once because its number of reads has
	// risen from "before" to "after".
	ReadsMakeDue(r prefetched.RegisteredEntity, before, after float64) bool
}

// Notifier notifies schedulers of due entities and query services of deleted snapshots.
type Notifier interface {
	// WakeAt notifies the schedulers of the source that an entity is due at this time.
	WakeAt(ctx context.Context, source string, at time.Time)
	// Invalidate notifies the query services that the snapshot of an entity was deleted.
	Invalidate(ctx context.Context, e schemas.Entity)
}
