package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// scheduling asks for the entities of the named sources, or of all, as they come due, and
// ends what was kept too long, until ctx ends.
func scheduling(up func(), names ...string) role {
	return func(ctx context.Context, p parts) error { return p.schedule(ctx, up, names) }
}

func (p parts) schedule(ctx context.Context, up func(), names []string) error {
	if err := p.checkMigrations(ctx); err != nil {
		return err
	}
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(p.config.Sources))
	}
	var runs []func(context.Context) error
	for _, name := range names {
		c, ok := p.config.Sources[name]
		if !ok {
			return p.noSource(name)
		}
		live, err := p.livePrefetch(name)
		if err != nil {
			return err
		}
		s, err := scheduler.NewScheduler(name, live.base, scheduler.Deps{
			Live:  live.now,
			Store: p.store, Enqueuer: lowEnqueuer{p.producer}, Capacity: p.look(name, c),
			Poller: poll.New(scheduleChannel(name), p.rdb, p.log.With("source", name), scheduler.Messages), Log: p.log, Metrics: p.reg,
		})
		if err != nil {
			return err
		}
		runs = append(runs, s.Run)
		for _, facet := range slices.Sorted(maps.Keys(c.Facets)) {
			for _, walk := range retention.New(name, facet, retention.PeriodsOf(c.Facets[facet]), p.store, p.log, p.reg) {
				runs = append(runs, walk.Run)
			}
		}
	}
	front := newGroup(ctx)
	for _, run := range runs {
		front.run(run)
	}
	up()
	<-front.ctx.Done()
	return front.stop()
}

// checkMigrations returns an error if the database lacks what this release needs, or can't be
// asked.
func (p parts) checkMigrations(ctx context.Context) error {
	_, err := p.store.Statuses(ctx, []schemas.Entity{{}})
	if err == nil {
		_, err = p.store.States(ctx, []schemas.Entity{{}}) // has a column of the newest migration
	}
	if err != nil {
		return fmt.Errorf("%w; check that the database has been migrated (`freshet migrate up`)", err)
	}
	return nil
}

// scheduleChannel is where the schedulers of a source hear of what is due.
func scheduleChannel(source string) string { return "schedule:" + source }

// look returns how it stands with a source: what LOW may call, and what waits for it.
func (p parts) look(name string, c SourceConfig) scheduler.CapacityFunc {
	cost := c.maxFacetCost()
	self := workerName() + "/" + rand.Text()[:8] // processes of several hosts may have one name
	return func(ctx context.Context, _ time.Time) (scheduler.Capacity, error) {
		room, err := p.room(ctx, name, cost)
		if err != nil {
			return scheduler.Capacity{}, err
		}
		room.Share, err = announceScheduler(ctx, p.rdb, name, self)
		return room, err
	}
}

// maxFacetCost is how many calls the dearest of the facets takes.
func (s SourceConfig) maxFacetCost() float64 {
	cost := 1.0
	for _, f := range s.Facets {
		cost = max(cost, float64(len(f.Documents)))
	}
	return cost
}

// room returns what LOW may call of a source, and what waits for it; of work whose calls are
// so many at most. The share is that of who feeds alone.
func (p parts) room(ctx context.Context, name string, cost float64) (scheduler.Capacity, error) {
	view, quota, set, err := p.limiterNow(ctx, name)
	if err != nil {
		return scheduler.Capacity{}, err
	}
	room := scheduler.Capacity{PerSecond: quota.LowPerSecond(view), Share: 1}
	if set != nil && set.Stopped { // Redis hears of it from workers, and there may be none
		room.PerSecond = 0
	}
	records, known := p.lag.Records(name, schemas.Low)
	if !known { // yet, or any more, of which the sampler tells: nothing is fed blindly
		room.PerSecond = 0
		return room, nil
	}
	room.Queued = cost * float64(records)
	wait, _, known := p.lag.EstimateWait(name, schemas.Low)
	switch {
	case known:
		room.Lag = wait
	case room.Queued > max(2*cost, maxUnclaimedWork.Seconds()*room.PerSecond):
		room.PerSecond = 0 // nobody has worked on it lately, and nobody knows how fast it will be
	}
	return room, nil
}

// maxUnclaimedWork is how much of LOW's work may wait in its topic without anybody working on it:
// should workers come back, and be a hundred times slower, it waits less than LOW may.
const maxUnclaimedWork = 10 * time.Second

// schedulerTTL is how long a scheduler counts that has not said that it lives.
const schedulerTTL = 30 * time.Second

func schedulersKey(source string) string { return "schedulers:{" + source + "}" }

// announceScheduler says that a scheduler of the source lives, and returns its share of what they
// feed together. For a moment after one has come they may feed more, and until one that
// has died is not counted any more, less.
func announceScheduler(ctx context.Context, rdb redis.UniversalClient, source, self string) (float64, error) {
	key := schedulersKey(source)
	now, err := rdb.Time(ctx).Result() // those of hosts may differ
	if err != nil {
		return 0, fmt.Errorf("ask Redis for the time: %w", err)
	}
	pipe := rdb.TxPipeline()
	pipe.ZAdd(ctx, key, redis.Z{Score: float64(now.UnixMilli()), Member: self})
	pipe.ZRemRangeByScore(ctx, key, "-inf", strconv.FormatInt(now.Add(-schedulerTTL).UnixMilli(), 10))
	count := pipe.ZCard(ctx, key)
	pipe.Expire(ctx, key, 2*schedulerTTL)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, fmt.Errorf("count the schedulers of %s: %w", source, err)
	}
	return 1 / float64(max(1, count.Val())), nil
}

// quotaReadTimeout bounds how long that waits for what was changed of the quota: with a database
// that hangs there must be time left to ask Redis.
const quotaReadTimeout = 500 * time.Millisecond

// limiterNow returns the limiter of a source as it is now, with the quota that is in
// force as far as what was changed of it can be read and holds, and that; nil: it can't be.
func (p parts) limiterNow(ctx context.Context, source string) (view limiter.View, quota limiter.Quota, set *limiter.Override, err error) {
	config := p.config.Sources[source].quota()
	if quota, err = limiter.NewQuota(config); err != nil {
		return view, quota, nil, err
	}
	brief, cancel := context.WithTimeout(ctx, quotaReadTimeout)
	o, revision, err := p.settings().Quota(brief, source)
	cancel()
	if err != nil {
		if !errors.Is(err, context.Canceled) { // otherwise whoever wanted to see it has left
			p.log.Warn("the limiter is shown without what was changed of its quota", "source", source, "err", err)
		}
	} else if changed, err := config.With(o); err == nil {
		if effective, err := limiter.NewQuota(changed); err == nil {
			quota = effective
		}
	}
	if err == nil || o.Stopped { // that much could be read
		set = &o
	}
	view, err = limiter.ReadView(ctx, p.rdb, source, quota, revision)
	return view, quota, set, err
}

// limiterView shows the limiter of a source as it is now.
func (p parts) limiterView(ctx context.Context, source string) (any, error) {
	view, _, _, err := p.limiterNow(ctx, source)
	return view, err
}

// lowEnqueuer lets what nobody waits for ask the producer, in the LOW lane.
type lowEnqueuer struct{ *producer.Producer }

// Prefetch asks for entities that are due.
func (d lowEnqueuer) Prefetch(ctx context.Context, asks []store.ClaimedRequest) []store.ClaimedRequest {
	return d.enqueue(ctx, schemas.Prefetch, asks)
}

// Trigger asks for facets that a change concerns.
func (d lowEnqueuer) Trigger(ctx context.Context, asks []store.ClaimedRequest) []store.ClaimedRequest {
	return d.enqueue(ctx, schemas.Trigger, asks)
}

// enqueue waits until Kafka has each, and returns those of which that is not certain. What is
// held is left out: its failure has a retry, or an end, of its own.
func (d lowEnqueuer) enqueue(ctx context.Context, reason schemas.Reason, asks []store.ClaimedRequest) (left []store.ClaimedRequest) {
	wishes := make([]producer.Request, len(asks))
	for i, a := range asks {
		wishes[i] = producer.Request{Entity: a.Entity, Params: a.Params, Lane: schemas.Low, Reason: reason, Floor: a.Version}
	}
	for i, r := range d.EnqueueAllAndWait(ctx, wishes) {
		if !r.Queued() && r.Outcome != producer.Held {
			left = append(left, asks[i])
		}
	}
	return left
}

// relay returns what carries out what follows from the changes of a source.
func (p parts) relay(name string) *outbox.Relay {
	loop := poll.New(outbox.Channel(name), p.rdb, p.log.With("source", name), outbox.Messages)
	return outbox.New(name, p.store, lowEnqueuer{p.producer}, p.client, loop, p.log, p.reg)
}

// triggers returns which facets a change of each refreshes.
func (s SourceConfig) triggers() map[string][]store.Trigger {
	all := map[string][]store.Trigger{}
	for facet, f := range s.Prefetch.Facets {
		for _, other := range slices.Sorted(maps.Keys(f.Triggers)) {
			t := store.Trigger{Facet: other, Backoff: f.Triggers[other].Backoff}
			t.Quiet, t.MaxDelay = f.Triggers[other].Delays()
			all[facet] = append(all[facet], t)
		}
	}
	return all
}
