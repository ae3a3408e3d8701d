// Package find lists the entities of a facet by prefix and state, for the console.
package find

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// ItemFilter selects the items that a list shows.
type ItemFilter string

// The values of ItemFilter. An item can match several of them: a stale item can also be failing.
const (
	AllItems     ItemFilter = ""
	FreshItems   ItemFilter = "fresh"
	StaleItems   ItemFilter = "stale"
	FailingItems ItemFilter = "failing"       // the last refresh failed
	HeldItems    ItemFilter = "held"          // failing, and not requested until a time or an action
	NotFound     ItemFilter = "not-found"     // the upstream reported that the entity does not exist
	NeverFetched ItemFilter = "never-fetched" // registered for prefetching, and nothing is stored
	ChangedHour  ItemFilter = "changed-1h"    // the content changed in the last hour
	ChangedDay   ItemFilter = "changed-24h"
	ReadHour     ItemFilter = "read-1h" // prefetched, and read in the last hour
	ReadDay      ItemFilter = "read-24h"
)

// ItemFilters are all values of ItemFilter.
var ItemFilters = []ItemFilter{
	AllItems, FreshItems, StaleItems, FailingItems, HeldItems, NotFound, NeverFetched, ChangedHour, ChangedDay, ReadHour, ReadDay,
}

const (
	// MaxItems is the maximum number of items of a page.
	MaxItems = 50
	// maxItemRows is the maximum number of rows that are examined for one page. It bounds the
	// duration of the read if few rows match.
	maxItemRows = 1000
)

// ItemQuery selects a page of the items of one facet. Their keys begin with Prefix and follow the
// key After, and the items match the filter.
type ItemQuery struct {
	Source, Facet, Prefix, After string
	Filter                       ItemFilter
}

// Item is one entity in a list.
type Item struct {
	Key string `json:"key"`
	// Freshness is empty if nothing is stored.
	Freshness store.Freshness `json:"freshness,omitempty"`
	CheckedAt time.Time       `json:"checkedAt,omitzero"`
	ChangedAt time.Time       `json:"changedAt,omitzero"`
	// ReadAt is the time of the last read. It is known only for prefetched entities.
	ReadAt time.Time `json:"readAt,omitzero"`
	// Prefetched is true if the entity is registered for prefetching and enabled. DueAt is the time
	// of its next prefetch.
	Prefetched bool      `json:"prefetched"`
	DueAt      time.Time `json:"dueAt,omitzero"`
	// Failure describes the failures since the last success; nil: there are none.
	Failure *ItemFailure `json:"failure,omitempty"`

	visibility string
}

// ItemFailure describes the failures of an entity since its last success.
type ItemFailure struct {
	State  store.StatusState `json:"state"`
	Reason string            `json:"reason"`
	Error  string            `json:"error"`
	Since  time.Time         `json:"since"`
	// Held is true while the entity is not requested. Until is the time of the retry or the end of
	// the hold; zero: until an operator or a successful fetch ends it.
	Held  bool      `json:"held"`
	Until time.Time `json:"until,omitzero"`
}

// ItemPage is one page of items in the order of their keys. Next is the key after which the next
// page begins; empty: this is the last page. A page can be short, or empty, although Next is set,
// because one page examines at most 1,000 rows.
type ItemPage struct {
	Items []Item `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Walker reads rows of one facet in the order of their keys.
type Walker interface {
	StatesInRange(ctx context.Context, f store.KeyRange, after string, limit int) ([]store.State, error)
	StatusesInRange(ctx context.Context, f store.KeyRange, after string, limit int) ([]store.Status, error)
	Entities(ctx context.Context, filter prefetched.Filter, after schemas.Entity, limit int) ([]prefetched.RegisteredEntity, error)
	// SampleEntities returns some enabled entities of a source.
	SampleEntities(ctx context.Context, source string, limit int) ([]prefetched.RegisteredEntity, error)
}

// Lookup reads the rows of given entities, in their order.
type Lookup interface {
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error)
	Registrations(ctx context.Context, entities []schemas.Entity) ([]*prefetched.RegisteredEntity, error)
}

// ItemReader finds the items of a facet. Each page costs a bounded number of reads by primary key,
// even if the tables are large:
//
//	walk       the table that the filter concerns, from the key After on: at most 1,000 rows
//	look up    state, failure and registration of the at most 50 matching keys
type ItemReader struct {
	Walker
	Lookup    Lookup
	Lifetimes func(source, facet string) store.Lifetimes
	Now       func() time.Time
}

// ErrUnknownFilter is the error of a query with a filter that does not exist.
var ErrUnknownFilter = errors.New("unknown filter of items")

// Find returns a page of items. The function `visible` reports whether the client may see an entity
// whose stored content has the visibility label; other entities are left out.
func (r ItemReader) Find(ctx context.Context, q ItemQuery, visible func(e schemas.Entity, visibility string) bool) (ItemPage, error) {
	keys, next, err := r.walk(ctx, q)
	if err != nil {
		return ItemPage{}, err
	}
	of := make([]schemas.Entity, len(keys))
	for i, key := range keys {
		of[i] = schemas.Entity{Source: q.Source, Facet: q.Facet, Key: key}
	}
	items, err := r.describe(ctx, of)
	if err != nil {
		return ItemPage{}, err
	}
	page := ItemPage{Items: []Item{}, Next: next}
	for i, item := range items {
		if visible(of[i], item.visibility) {
			page.Items = append(page.Items, item)
		}
	}
	return page, nil
}

// walk returns the keys of the items of a page, and the key after which the next page begins.
func (r ItemReader) walk(ctx context.Context, q ItemQuery) (keys []string, next string, err error) {
	in, now := store.KeyRange{Source: q.Source, Facet: q.Facet, KeyPrefix: q.Prefix}, r.Now()
	since := func(age time.Duration, at time.Time) bool { return now.Sub(at) < age }
	switch q.Filter {
	case AllItems:
		return r.walkAll(ctx, in, q.After)
	case FreshItems, StaleItems, NotFound:
		life := r.Lifetimes(q.Source, q.Facet)
		want := map[ItemFilter]store.Freshness{FreshItems: store.Fresh, StaleItems: store.Stale, NotFound: store.NotFound}[q.Filter]
		return r.walkStates(ctx, in, q.After, func(s store.State) bool {
			found, _ := store.FreshnessOf(&s, life, now)
			return found == want
		})
	case ChangedHour:
		return r.walkStates(ctx, in, q.After, func(s store.State) bool { return since(time.Hour, s.UpdatedAt) })
	case ChangedDay:
		return r.walkStates(ctx, in, q.After, func(s store.State) bool { return since(24*time.Hour, s.UpdatedAt) })
	case FailingItems, HeldItems:
		rows, err := r.Walker.StatusesInRange(ctx, in, q.After, maxItemRows)
		keys, next = choose(rows, err, func(s store.Status) (string, bool) { return s.Entity.Key, q.Filter == FailingItems || heldAt(s, now) })
		return keys, next, err
	case NeverFetched:
		rows, err := r.registrations(ctx, in, q.After, maxItemRows)
		if err != nil {
			return nil, "", err
		}
		of := make([]schemas.Entity, len(rows))
		for i, e := range rows {
			of[i] = e.Entity
		}
		states, err := r.Lookup.States(ctx, of)
		keys, next = choose(states, err, func(s store.State) (string, bool) { return s.Entity.Key, s.Version == 0 })
		return keys, next, err
	case ReadHour, ReadDay:
		age := map[ItemFilter]time.Duration{ReadHour: time.Hour, ReadDay: 24 * time.Hour}[q.Filter]
		rows, err := r.registrations(ctx, in, q.After, maxItemRows)
		keys, next = choose(rows, err, func(e prefetched.RegisteredEntity) (string, bool) { return e.Entity.Key, since(age, e.History.ReadAt) })
		return keys, next, err
	}
	return nil, "", ErrUnknownFilter
}

func (r ItemReader) walkStates(ctx context.Context, in store.KeyRange, after string, matches func(store.State) bool) (keys []string, next string, err error) {
	rows, err := r.Walker.StatesInRange(ctx, in, after, maxItemRows)
	keys, next = choose(rows, err, func(s store.State) (string, bool) { return s.Entity.Key, matches(s) })
	return keys, next, err
}

// walkAll merges the keys of the stored, the failing and the registered entities.
func (r ItemReader) walkAll(ctx context.Context, in store.KeyRange, after string) (keys []string, next string, err error) {
	states, err := r.Walker.StatesInRange(ctx, in, after, MaxItems+1)
	if err != nil {
		return nil, "", err
	}
	failed, err := r.Walker.StatusesInRange(ctx, in, after, MaxItems+1)
	if err != nil {
		return nil, "", err
	}
	registered, err := r.registrations(ctx, in, after, MaxItems+1)
	if err != nil {
		return nil, "", err
	}
	for _, s := range states {
		keys = append(keys, s.Entity.Key)
	}
	for _, s := range failed {
		keys = append(keys, s.Entity.Key)
	}
	for _, e := range registered {
		keys = append(keys, e.Entity.Key)
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > MaxItems {
		keys = keys[:MaxItems]
		next = keys[MaxItems-1]
	}
	return keys, next, nil
}

func (r ItemReader) registrations(ctx context.Context, in store.KeyRange, after string, limit int) ([]prefetched.RegisteredEntity, error) {
	return r.Walker.Entities(ctx, prefetched.Filter{Source: in.Source, Facet: in.Facet, KeyPrefix: in.KeyPrefix}, schemas.Entity{Source: in.Source, Facet: in.Facet, Key: after}, limit)
}

// choose returns the keys of the first matching rows, at most MaxItems, and the key after which the
// next page begins. It returns nothing if the rows could not be read.
func choose[T any](rows []T, err error, matches func(T) (key string, ok bool)) (keys []string, next string) {
	if err != nil {
		return nil, ""
	}
	for i, row := range rows {
		key, ok := matches(row)
		if ok {
			keys = append(keys, key)
		}
		if last := i == len(rows)-1; len(keys) == MaxItems && !last || last && len(rows) == maxItemRows {
			return keys, key
		}
	}
	return keys, ""
}

// describe reads the items of the entities.
func (r ItemReader) describe(ctx context.Context, of []schemas.Entity) ([]Item, error) {
	states, err := r.Lookup.States(ctx, of)
	if err != nil {
		return nil, err
	}
	statuses, err := r.Lookup.Statuses(ctx, of)
	if err != nil {
		return nil, err
	}
	registered, err := r.Lookup.Registrations(ctx, of)
	if err != nil {
		return nil, err
	}
	items, now := make([]Item, len(of)), r.Now()
	for i, e := range of {
		s, item := states[i], &items[i]
		item.Key, item.visibility = e.Key, s.Visibility
		if s.Version > 0 {
			item.Freshness, _ = store.FreshnessOf(&s, r.Lifetimes(e.Source, e.Facet), now)
			item.CheckedAt, item.ChangedAt = s.CheckedAt, s.UpdatedAt
		}
		if f := statuses[i]; f.State != "" {
			item.Failure = &ItemFailure{State: f.State, Reason: f.Reason, Error: f.Error, Since: f.Since, Held: heldAt(f, now), Until: f.Until}
		}
		if e := registered[i]; e != nil {
			item.ReadAt, item.Prefetched, item.DueAt = e.History.ReadAt, e.Enabled, e.Due
		}
	}
	return items, nil
}

// heldAt reports whether an entity with this status is not requested at the time.
func heldAt(s store.Status, at time.Time) bool { return s.State != store.Failed || s.Until.After(at) }
