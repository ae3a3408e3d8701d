package main

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

// entities returns which entities of the sources are prefetched.
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
		known[name] = entities.Source{Facets: params, Keys: s, Schedule: live}
	}
	return entities.New(entities.Deps{Store: p.store, Sources: known, Notifier: others{p}, Actor: actor, Now: time.Now, Log: p.log}), nil
}

// notifyTimeout bounds what telling others may take.
const notifyTimeout = time.Second

// others are told what was done to entities, over Redis.
type others struct{ parts }

// WakeAt tells the schedulers that something is due then.
func (o others) WakeAt(ctx context.Context, source string, at time.Time) {
	poll.WakeAt(ctx, o.rdb, scheduleChannel(source), at, o.log)
}

// Invalidate ends an entity's hold, and tells the query services to look again, as after a
// settle of no number: they find that nothing is stored.
func (o others) Invalidate(ctx context.Context, e schemas.Entity) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
	defer cancel()
	err := o.producer.ClearHold(ctx, e)
	err = errors.Join(err, o.rdb.Publish(ctx, schemas.SettledChannel(e.Source), schemas.Settled{Entity: e}.Encode()).Err())
	if err != nil {
		o.log.Warn("what was deleted may be served for half a minute yet, and held back for longer: Redis could not be told", "entity", e.String(), "err", err)
	}
}

// readers lets the query service tell who is read.
type readers struct{ *entities.Entities }

// RecordReads counts reads that were made until a time.
func (r readers) RecordReads(ctx context.Context, reads []query.ReadCount, until time.Time) error {
	all := make([]entities.ReadCount, len(reads))
	for i, read := range reads {
		all[i] = entities.ReadCount(read)
	}
	return r.Entities.RecordReads(ctx, all, until)
}
