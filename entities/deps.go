package entities

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Deps are what the entities work with.
type Deps struct {
	Store    Store
	Sources  map[string]Source // by name
	Notifier Notifier
	// Actor names who asks, for the audit.
	Actor func(*http.Request) string
	Now   func() time.Time
	Log   *slog.Logger
}

// Store keeps the entities that are prefetched, and what is stored of them.
type Store interface {
	// RegisterEntities registers entities, and returns how many were unknown. Of the
	// others params, pinned and enabled are replaced, and the tier if it is pinned.
	RegisterEntities(ctx context.Context, all []store.RegisteredEntity) (added int, err error)
	// BringForward makes entities due earlier, and none later.
	BringForward(ctx context.Context, all []store.DueTime) error
	// PinEntities and UnpinEntities return how many entities they changed.
	PinEntities(ctx context.Context, of []schemas.Entity, tier store.Tier) (int, error)
	UnpinEntities(ctx context.Context, of []schemas.Entity) (int, error)
	// Entities returns those that the filter chooses behind an entity, in their order,
	// limit of them at most.
	Entities(ctx context.Context, filter store.EntityFilter, after schemas.Entity, limit int) ([]store.RegisteredEntity, error)
	// CountEntities may estimate, and then says so.
	CountEntities(ctx context.Context, filter store.EntityFilter) (n int64, exact bool, err error)
	// EnableEntities sets the flag of those with the keys, of the filter's source and
	// facet, and returns how many had the other one.
	EnableEntities(ctx context.Context, filter store.EntityFilter, keys []string, enabled bool) (int, error)
	// ObserveReads adds reads to entities, and registers those that are unknown. Those of
	// which risen says so are due at once.
	ObserveReads(ctx context.Context, reads []store.EntityReads, risen store.RefreshNowFunc) error
	// DeleteSnapshot deletes what is stored of an entity, and its registration, and
	// reports whether there was anything; the audit is written with it, or neither.
	DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (was bool, err error)
	// WriteAudit writes an entry of the audit.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
}

// Source is what is known of one source.
type Source struct {
	Facets   map[string][]string // with the names of their params
	Keys     Keys
	Schedule Schedule
}

// Keys knows which keys a facet takes.
type Keys interface {
	CheckKey(facet, key string) error
}

// Schedule says when an entity is prefetched.
type Schedule interface {
	// Prefetches reports whether entities of the facet are asked for by themselves.
	Prefetches(facet string) bool
	// FirstDue returns when an entity that is registered now is due first; not at all if
	// its facet is not prefetched.
	FirstDue(r store.RegisteredEntity, now time.Time) (due time.Time, prefetched bool)
	// ReadsMakeDue reports whether reads are a reason to look at an entity at once (store.RefreshNowFunc).
	ReadsMakeDue(r store.RegisteredEntity, before, after float64) bool
}

// Notifier is who hears of what was done.
type Notifier interface {
	// WakeAt tells the schedulers that something of the source is due then.
	WakeAt(ctx context.Context, source string, at time.Time)
	// Invalidate tells the query services that nothing is stored of an entity any more.
	Invalidate(ctx context.Context, e schemas.Entity)
}
