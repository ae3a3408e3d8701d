package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// scheduling returns the scheduler role for the named sources, or for all sources. The role
// prefetches due entities and deletes data beyond its retention. It calls the function "up" when it
// has started.
func scheduling(up func(), names ...string) role {
	return func(ctx context.Context, p parts) error { return schedulerRole{p}.schedule(ctx, up, names) }
}

// schedulerRole joins the parts of the scheduler.
type schedulerRole struct{ parts }

func (p schedulerRole) schedule(ctx context.Context, up func(), names []string) error {
	if err := p.checkMigrations(ctx); err != nil {
		return err
	}
	if len(names) == 0 {
		names = p.config.sourceNames()
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
			Store: p.store, Enqueuer: claimEnqueuer{p.producer}, Capacity: p.capacityFunc(name, c),
			Poller: poll.New(scheduleChannel(name), p.rdb, p.log.With("source", name), scheduler.TicksFail), Log: p.log, Metrics: p.reg,
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
	runs = append(runs, newMaintenance(p.parts).Run)
	foreground := newGroup(ctx)
	for _, run := range runs {
		foreground.run(run)
	}
	up()
	<-foreground.ctx.Done()
	return foreground.stop()
}

// checkMigrations returns an error if the database schema is older than this release, or if the
// database can't be read.
func (p parts) checkMigrations(ctx context.Context) error {
	_, err := p.store.Statuses(ctx, []schemas.Entity{{}})
	if err == nil {
		_, err = p.store.States(ctx, []schemas.Entity{{}}) // States reads the table of snapshots, so this table is checked too
	}
	if err != nil {
		return fmt.Errorf("read the database: %w; after an upgrade, run `freshet migrate up`", err)
	}
	return nil
}

// scheduleChannel returns the Redis channel that notifies the schedulers of a source of due
// entities.
func scheduleChannel(source string) string { return "schedule:" + source }

// capacityFunc returns a function that reads the capacity of a source for prefetching. Each call
// also writes the heartbeat of this scheduler.
func (p schedulerRole) capacityFunc(name string, c SourceConfig) scheduler.CapacityFunc {
	cost := float64(maxDocuments(c.Facets))
	self := workerName() + "/" + rand.Text()[:8] // the name of this scheduler has a random part, because several containers may have the same host name and pid
	return func(ctx context.Context, _ time.Time) (scheduler.Capacity, error) {
		capacity, err := p.capacity(ctx, name, cost)
		if err != nil {
			return scheduler.Capacity{}, err
		}
		capacity.Share, err = status.WriteHeartbeat(ctx, p.rdb, name, self)
		return capacity, err
	}
}

// capacity returns the capacity of a source for prefetching. It has the rate of the LOW lane, the
// calls that wait in the LOW topic, and the estimated time until these calls are made. cost is the
// maximum number of calls per record. The returned Share is 1; the caller sets it if several
// schedulers run.
func (p parts) capacity(ctx context.Context, name string, cost float64) (scheduler.Capacity, error) {
	view, quota, set, err := p.limiterNow(ctx, name)
	if err != nil {
		return scheduler.Capacity{}, err
	}
	capacity := scheduler.Capacity{PerSecond: quota.LowPerSecond(view), Share: 1}
	if set != nil && set.Stopped { // the stored override says that the source is stopped; the limiter's view shows this only after a worker has reported it
		capacity.PerSecond = 0
	}
	records, known := p.lag.Records(name, schemas.Low)
	if !known { // if the consumer lag is unknown, the capacity is 0; the lag sampler logs why it is unknown
		capacity.PerSecond = 0
		return capacity, nil
	}
	capacity.Queued = cost * float64(records)
	wait, known := p.lag.EstimateWait(name, schemas.Low)
	switch {
	case known:
		capacity.Lag = wait
	case capacity.Queued > max(2*cost, maxUnclaimedWork.Seconds()*capacity.PerSecond):
		capacity.PerSecond = 0 // the scheduler enqueues no further request: no worker has consumed the LOW topic recently, and too many calls wait in it
	}
	return capacity, nil
}

// maxUnclaimedWork bounds the calls that may wait in the LOW topic while no worker consumes it. The
// bound is the number of calls that the rate of the LOW lane allows in this time: 1,000 calls at
// 100 calls a second. Workers that make one call a second still make these calls in 17 minutes.
const maxUnclaimedWork = 10 * time.Second

// quotaReadTimeout bounds the read of a quota override in limiterNow, so that a database that
// hangs leaves time to read Redis.
const quotaReadTimeout = 500 * time.Millisecond

// limiterNow returns the current state of a source's limiter, the quota in force, and the stored
// override. If the override can't be read, set is nil. If the override is invalid, it is ignored. In
// both cases quota is the configured quota.
func (p parts) limiterNow(ctx context.Context, source string) (view limiter.View, quota limiter.Quota, set *limiter.Override, err error) {
	config := p.config.Sources[source].quota()
	if quota, err = limiter.NewQuota(config); err != nil {
		return view, quota, nil, err
	}
	readCtx, cancel := context.WithTimeout(ctx, quotaReadTimeout)
	o, revision, err := p.settings().Quota(readCtx, source)
	cancel()
	if err != nil {
		if !errors.Is(err, context.Canceled) { // a cancelled read needs no log line: the client has disconnected
			p.log.Warn("quota settings can't be read; limiter state is shown with the configured quota", "source", source, "err", err)
		}
	} else if changed, err := config.With(o); err == nil {
		if effective, err := limiter.NewQuota(changed); err == nil {
			quota = effective
		}
	}
	if err == nil || o.Stopped { // an override that is only partly valid may still hold the emergency stop
		set = &o
	}
	view, err = limiter.ReadView(ctx, p.rdb, source, quota, revision)
	return view, quota, set, err
}

// limiterView returns the current state of a source's limiter. It implements
// settings.ReadLimiter.
func (p parts) limiterView(ctx context.Context, source string) (any, error) {
	view, _, _, err := p.limiterNow(ctx, source)
	return view, err
}

// claimEnqueuer makes a producer usable as the Enqueuer of schedulers and outbox relays. Its requests
// are in the LOW lane, except requests of webhooks with the setting lane: HIGH.
type claimEnqueuer struct{ *producer.Producer }

// Prefetch enqueues refreshes of due entities.
func (d claimEnqueuer) Prefetch(ctx context.Context, claimed []prefetched.ClaimedRequest) []prefetched.ClaimedRequest {
	return d.enqueue(ctx, schemas.Prefetch, claimed)
}

// Trigger enqueues the requests of triggers. The request of a link's target is relaxed, and all others
// are strict.
func (d claimEnqueuer) Trigger(ctx context.Context, claimed []prefetched.ClaimedRequest) []prefetched.ClaimedRequest {
	return d.enqueue(ctx, schemas.Trigger, claimed)
}

// enqueue enqueues requests and waits for Kafka's acknowledgements. It returns the requests that
// were not enqueued, except requests of entities with a hold: such an entity is not requested until
// its hold ends.
func (d claimEnqueuer) enqueue(ctx context.Context, reason schemas.Reason, claimed []prefetched.ClaimedRequest) (left []prefetched.ClaimedRequest) {
	requests := make([]producer.Request, len(claimed))
	for i, a := range claimed {
		requests[i] = claimedRequest(reason, a)
	}
	for i, r := range d.EnqueueAllAndWait(ctx, requests) {
		if !r.Queued() && r.Outcome != producer.Held {
			left = append(left, claimed[i])
		}
	}
	return left
}

// claimedRequest converts a claimed request to a request of the producer. The lane is LOW if a names
// none. The reason is LINK if a has a depth, NEXT_PAGE if a has a page, and otherwise the given reason.
func claimedRequest(reason schemas.Reason, a prefetched.ClaimedRequest) producer.Request {
	switch {
	case a.Page != "":
		reason = schemas.NextPage
	case a.Depth > 0:
		reason = schemas.Link
	}
	return producer.Request{Entity: a.Entity, Params: a.Params, Lane: cmp.Or(a.Lane, schemas.Low), Reason: reason, Floor: a.Version, Depth: a.Depth, Page: a.Page}
}

// relay returns the outbox relay of a source.
func (p workerRole) relay(name string) *outbox.Relay {
	poller := poll.New(outbox.Channel(name), p.rdb, p.log.With("source", name), outbox.ClaimsFail)
	return outbox.New(name, p.store, claimEnqueuer{p.producer}, p.client, poller, p.log, p.reg)
}

// triggers returns, for each facet, the triggers that a change of this facet sets off. Each trigger
// refreshes another facet of the same key.
func (c PrefetchConfig) triggers() map[string][]store.Trigger {
	all := map[string][]store.Trigger{}
	for facet, f := range c.Facets {
		for _, other := range slices.Sorted(maps.Keys(f.Triggers)) {
			t := store.Trigger{Facet: other, Backoff: f.Triggers[other].Backoff}
			t.Quiet, t.MaxDelay = f.Triggers[other].Delays()
			all[facet] = append(all[facet], t)
		}
	}
	return all
}
