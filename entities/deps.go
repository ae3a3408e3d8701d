package entities

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Deps are the dependencies of Entities.
type Deps struct {
	Store    Store
	Sources  map[string]Source // by name
	Notifier Notifier
	// Actor returns the client's name for the audit.
	Actor func(*http.Request) string
	Now   func() time.Time
	Log   *slog.Logger
}

// Store holds the registered entities and the snapshots. Its implementations are in package store.
type Store interface {
	// RegisterEntities registers entities, and returns how many were new. For a known entity it
	// replaces params, pinned and enabled, and the tier if it is pinned.
	RegisterEntities(ctx context.Context, all []store.RegisteredEntity) (added int, err error)
	// BringForward sets earlier due times. It ignores a time that is later than the stored one.
	BringForward(ctx context.Context, all []store.DueTime) error
	// PinEntities and UnpinEntities return how many entities they changed.
	PinEntities(ctx context.Context, of []schemas.Entity, tier store.Tier) (int, error)
	UnpinEntities(ctx context.Context, of []schemas.Entity) (int, error)
	// Entities returns at most limit entities that the filter matches, after an entity in their
	// order.
	Entities(ctx context.Context, filter store.EntityFilter, after schemas.Entity, limit int) ([]store.RegisteredEntity, error)
	// CountEntities counts the entities that the filter matches. exact is false if n is an
	// estimate.
	CountEntities(ctx context.Context, filter store.EntityFilter) (n int64, exact bool, err error)
	// EnableEntities sets the flag enabled of the entities with these keys, in the filter's source
	// and facet, and returns how many changed.
	EnableEntities(ctx context.Context, filter store.EntityFilter, keys []string, enabled bool) (int, error)
	// ObserveReads adds reads to entities, and registers unknown ones. An entity for which risen
	// returns true becomes due at once.
	ObserveReads(ctx context.Context, reads []store.EntityReads, risen store.RefreshNowFunc) error
	// DeleteSnapshot deletes the snapshot and the registration of an entity, and reports whether
	// there was any. It writes the audit entry in the same transaction.
	DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (was bool, err error)
	// WriteAudit writes an audit entry.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
}

// Source is the part of a source's configuration that Entities needs.
type Source struct {
	Facets   map[string][]string // params by facet
	Keys     Keys
	Schedule Schedule
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
	FirstDue(r store.RegisteredEntity, now time.Time) (due time.Time, prefetched bool)
	// ReadsMakeDue reports whether the reads of an entity have risen so much that it is due at once
	// (store.Risen).
	ReadsMakeDue(r store.RegisteredEntity, before, after float64) bool
}

// Notifier notifies other processes of changes.
type Notifier interface {
	// WakeAt notifies the schedulers of the source that an entity is due at this time.
	WakeAt(ctx context.Context, source string, at time.Time)
	// Invalidate notifies the query services that the snapshot of an entity was deleted.
	Invalidate(ctx context.Context, e schemas.Entity)
}
