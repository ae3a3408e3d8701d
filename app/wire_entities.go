package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// entities returns the registry of prefetched entities.
func (p parts) entities(sources map[string]*source.Source) (*entities.Entities, error) {
	known := map[string]entities.Source{}
	for name, s := range sources {
		c := p.config.Sources[name]
		live, err := p.livePrefetch(name)
		if err != nil {
			return nil, err
		}
		params := map[string][]string{}
		for facet, f := range c.Facets {
			params[facet] = slices.Sorted(maps.Keys(f.Params))
		}
		known[name] = entities.Source{Facets: params, Keys: s, Fold: foldKeys(s), Schedule: live}
	}
	return entities.New(entities.Deps{Store: p.store, States: p.store, Sources: known, Notifier: others{p}, Actor: actor, Now: time.Now, Log: p.log}), nil
}

// foldKeys returns the function that returns the canonical spelling of a key.
func foldKeys(s *source.Source) func(facet, key string) string {
	return func(facet, key string) string {
		f, _ := s.Facet(facet)
		return f.FoldKey(key)
	}
}

// notifyTimeout bounds the notification of other processes through Redis.
const notifyTimeout = time.Second

// others notifies the schedulers and query services of changed entities, through Redis. It
// implements entities.Notifier.
type others struct{ parts }

// WakeAt notifies the schedulers that an entity is due at the time `at`.
func (o others) WakeAt(ctx context.Context, source string, at time.Time) {
	poll.WakeAt(ctx, o.rdb, scheduleChannel(source), at, o.log)
}

// Invalidate removes an entity's hold and notifies the query services, as if a request of the entity
// had been settled. The query services then drop the entity from their caches and read the database
// again.
func (o others) Invalidate(ctx context.Context, e schemas.Entity) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
	defer cancel()
	err := o.producer.ClearHold(ctx, e)
	err = errors.Join(err, o.rdb.Publish(ctx, schemas.SettledChannel(e.Source), schemas.Settled{Entity: e}.Encode()).Err())
	if err != nil {
		o.log.Warn("cache invalidation failed; query services may serve the deleted snapshot for 30s, and the hold of the entity remains", "entity", e.String(), "err", err)
	}
}

// readers adapts the entity registry to query.ReadRecorder.
type readers struct{ *entities.Entities }

// RecordReads adds read counts to the registered entities. until is the end of the counted period.
func (r readers) RecordReads(ctx context.Context, reads []query.ReadCount, until time.Time) error {
	all := make([]entities.ReadCount, len(reads))
	for i, read := range reads {
		all[i] = entities.ReadCount(read)
	}
	return r.Entities.RecordReads(ctx, all, until)
}
