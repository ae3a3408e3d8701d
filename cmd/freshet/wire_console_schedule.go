package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
)

const (
	// dueTTL and countsTTL are the ages at which cached values are read from the database again.
	// dueTimeout and countsTimeout bound one such read.
	dueTTL, dueTimeout       = 2 * time.Second, 5 * time.Second
	countsTTL, countsTimeout = time.Minute, 30 * time.Second
	// maxStaleness is how long after its TTL a value is still shown while the next read is in
	// progress or fails.
	maxStaleness = 30 * time.Second
	// firstReadWait is the time for which a caller waits for the first read.
	firstReadWait = 300 * time.Millisecond
	// maxDueCounted bounds each count of due entities, retries and outbox events.
	maxDueCounted = 1000
)

// backlogs counts due entities, retries and outbox events. Each count uses a database index and
// ends at a limit, so it is fast.
type backlogs interface {
	TierBacklogs(ctx context.Context, source string, now time.Time, limit int) ([]store.TierBacklog, error)
	RetryBacklog(ctx context.Context, source string, by time.Time, limit int) (store.Backlog, error)
	OutboxBacklog(ctx context.Context, source string, by time.Time, limit int) (store.Backlog, error)
}

// scheduleReader provides the state of the schedules to the console.
type scheduleReader struct {
	parts     parts
	caches    map[string]*scheduleCache
	live      map[string]*livePrefetch         // prefetch settings in force, by source; no entry: the source's configuration is invalid
	requested *status.Cached[map[string]int64] // number of prefetch requests, by source
}

// scheduleCache caches database reads for one source's schedule.
type scheduleCache struct {
	due    status.Cached[console.Due]
	counts status.Cached[map[tierKey]entityCount]
}

type tierKey struct {
	facet string
	tier  store.Tier
}

type entityCount struct {
	n     int64
	exact bool
}

func (p parts) schedules() scheduleReader {
	s := scheduleReader{p, map[string]*scheduleCache{}, map[string]*livePrefetch{}, nil}
	s.requested = &status.Cached[map[string]int64]{
		Read: func(context.Context) (map[string]int64, error) { return s.counters(), nil }, Timeout: dueTimeout, Clock: time.Now, Log: p.log,
	}
	for name := range p.config.Sources {
		s.caches[name] = &scheduleCache{
			due: status.Cached[console.Due]{
				Read: func(ctx context.Context) (console.Due, error) { return s.due(ctx, name) }, Timeout: dueTimeout, MaxStale: maxStaleness, Clock: time.Now, Log: p.log,
			},
			counts: status.Cached[map[tierKey]entityCount]{
				Read: func(ctx context.Context) (map[tierKey]entityCount, error) { return s.counts(ctx, name) }, Timeout: countsTimeout, MaxStale: maxStaleness, Clock: time.Now, Log: p.log,
			},
		}
		if live, err := p.livePrefetch(name); err == nil {
			s.live[name] = live
		}
	}
	return s
}

// Schedule returns the state of a source's schedule.
func (s scheduleReader) Schedule(ctx context.Context, source string) console.ScheduleState {
	read, known := s.caches[source]
	if !known {
		return console.ScheduleState{Due: console.Due{Error: "unknown source"}}
	}
	c, now := s.parts.config.Sources[source], time.Now()
	var all console.ScheduleState
	c, all.Disabled = s.inForce(ctx, source, c)
	all.FeedRate.Error, all.Schedulers.Error = status.ErrPanic.Error(), status.ErrPanic.Error() // each read below replaces its error, unless it panics
	var running sync.WaitGroup
	start := func(f func()) { running.Go(func() { status.CatchPanic(s.parts.log, f) }) }
	readCtx, cancel := context.WithTimeout(ctx, firstReadWait)
	defer cancel()
	start(func() { all.FeedRate, all.RateCap = s.feed(ctx, source, c, now) })
	start(func() { all.Schedulers = s.schedulers(ctx, source) })
	start(func() {
		due, _, err := read.due.Get(readCtx, dueTTL)
		if err != nil {
			due = console.Due{Error: s.describe(err)}
		}
		all.Due = due
	})
	start(func() {
		counts, _, err := read.counts.Get(readCtx, countsTTL)
		if err != nil {
			counts = nil
		}
		all.Facets = facetSchedules(c, counts, s.describe(err), now)
	})
	counters, _, _ := s.requested.Get(readCtx, dueTTL)
	if n, there := counters[source]; there {
		all.Requested = &n
	}
	running.Wait()
	return all
}

// inForce returns the source's configuration with the settings in force, and whether prefetching is
// disabled. If the settings in force are unknown, it returns the parameter "configured".
func (s scheduleReader) inForce(ctx context.Context, source string, configured SourceConfig) (c SourceConfig, disabled bool) {
	c = configured
	live, ok := s.live[source]
	if !ok {
		return c, false
	}
	status.CatchPanic(s.parts.log, func() { c, disabled = live.inForce(ctx) })
	return c, disabled
}

// describe returns the text that the console shows for a failed read; it logs the error.
func (s scheduleReader) describe(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, status.ErrNotReadYet):
		return "the value is being read"
	case errors.Is(err, status.ErrPanic):
		return err.Error()
	case !errors.Is(err, context.Canceled):
		s.parts.log.Debug("schedule read failed", "err", err)
	}
	return "the database does not answer"
}

// due counts due entities, retries and outbox events.
func (s scheduleReader) due(ctx context.Context, source string) (console.Due, error) {
	now, db := time.Now(), s.parts.store
	d := console.Due{At: now, MaxCounted: maxDueCounted}
	var err error
	if d.Next, err = db.NextEntityTime(ctx, source); err != nil {
		return d, err
	}
	if d.Tiers, err = db.TierBacklogs(ctx, source, now, maxDueCounted); err != nil {
		return d, err
	}
	if d.Retries, err = db.RetryBacklog(ctx, source, now, maxDueCounted); err != nil {
		return d, err
	}
	if d.Scheduled, err = db.RetryBacklog(ctx, source, now.AddDate(10, 0, 0), maxDueCounted); err != nil {
		return d, err
	}
	d.Outbox, err = db.OutboxBacklog(ctx, source, now, maxDueCounted)
	return d, err
}

// counts returns the number of enabled entities per facet and tier; large numbers are estimates of
// the database.
func (s scheduleReader) counts(ctx context.Context, source string) (map[tierKey]entityCount, error) {
	counts, enabled := map[tierKey]entityCount{}, true
	for facet := range s.parts.config.Sources[source].Facets {
		for _, tier := range []store.Tier{store.Hot, store.Warm, store.Cold} {
			n, exact, err := s.parts.store.CountEntities(ctx, store.EntityFilter{Source: source, Facet: facet, Tier: &tier, Enabled: &enabled})
			if err != nil {
				return nil, err
			}
			counts[tierKey{facet, tier}] = entityCount{n, exact}
		}
	}
	return counts, nil
}

// facetSchedules returns the prefetch configuration of each facet, with the entity counts.
func facetSchedules(c SourceConfig, counts map[tierKey]entityCount, failure string, now time.Time) []console.FacetSchedule {
	schedule, err := c.newSchedule()
	if err != nil { // impossible: the process does not start with an invalid configuration
		return nil
	}
	var all []console.FacetSchedule
	for _, name := range slices.Sorted(maps.Keys(c.Facets)) {
		f, there := c.Prefetch.Facets[name]
		if !there {
			f = scheduler.DefaultConfig()
		}
		shown := console.FacetSchedule{Facet: name, Mode: string(f.Mode), MinInterval: f.MinInterval, MaxInterval: f.MaxInterval, ReadyAt: schedule.ContentReadyAt(name, now)}
		for tier, of := range map[store.Tier]scheduler.Tier{store.Hot: f.Tiers.Hot, store.Warm: f.Tiers.Warm, store.Cold: f.Tiers.Cold} {
			n := counts[tierKey{name, tier}]
			shown.Tiers[tier] = console.TierSchedule{Interval: of.Every, Entities: console.Reading[int64]{Value: n.n, Error: failure}, Exact: n.exact}
		}
		for _, other := range slices.Sorted(maps.Keys(f.Triggers)) {
			t := console.TriggerSchedule{Facet: other, Backoff: f.Triggers[other].Backoff}
			t.Quiet, t.MaxDelay = f.Triggers[other].Delays()
			shown.Triggers = append(shown.Triggers, t)
		}
		all = append(all, shown)
	}
	return all
}

// feed returns the rate at which the schedulers may enqueue now, in calls a second, and the rate
// cap in force, if there is one. It calculates the rate as the schedulers do.
func (s scheduleReader) feed(ctx context.Context, source string, c SourceConfig, now time.Time) (feed console.Reading[float64], rateCap *float64) {
	schedule, err := c.newSchedule()
	if err == nil {
		if rate, there := schedule.RateCap(now); there {
			rateCap = &rate
		}
	}
	budget, err := scheduler.NewBudget(c.spending())
	if err != nil {
		return console.Reading[float64]{Error: "the configuration is invalid"}, rateCap
	}
	capacity, err := s.parts.capacity(ctx, source, c.maxFacetCost())
	if err != nil {
		return console.Reading[float64]{Error: "Redis does not answer"}, rateCap
	}
	return console.Reading[float64]{Value: budget.Rate(capacity, now)}, rateCap
}

// schedulers returns the live schedulers of a source.
func (s scheduleReader) schedulers(ctx context.Context, source string) console.Reading[[]console.SchedulerHeartbeat] {
	all, err := readSchedulers(ctx, s.parts.rdb, source)
	if err != nil {
		return console.Reading[[]console.SchedulerHeartbeat]{Error: "Redis does not answer"}
	}
	return console.Reading[[]console.SchedulerHeartbeat]{Value: all}
}

// readSchedulers reads the heartbeats that announceScheduler writes.
func readSchedulers(ctx context.Context, rdb redis.UniversalClient, source string) ([]console.SchedulerHeartbeat, error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("read the time from Redis: %w", err)
	}
	found, err := rdb.ZRevRangeByScoreWithScores(ctx, schedulersKey(source), &redis.ZRangeBy{
		Max: "+inf", Min: strconv.FormatInt(now.Add(-schedulerTTL).UnixMilli(), 10), Count: 100,
	}).Result()
	if err != nil {
		return nil, fmt.Errorf("read the schedulers of %s: %w", source, err)
	}
	var all []console.SchedulerHeartbeat
	for _, z := range found {
		all = append(all, console.SchedulerHeartbeat{Process: fmt.Sprint(z.Member), Age: max(0, now.Sub(time.UnixMilli(int64(z.Score))))})
	}
	return all, nil
}

// counters returns the number of prefetch requests of this process's schedulers, by source.
func (s scheduleReader) counters() map[string]int64 {
	families, err := s.parts.registry.Gather() // even with an error, families holds the metrics that could be gathered
	if err != nil {
		s.parts.log.Debug("metrics gathered in part", "err", err)
	}
	all := map[string]int64{}
	for _, family := range families {
		if family.GetName() != metricPrefix(s.parts.config.Metrics.Namespace)+"prefetch_requested_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			all[status.LabelsOf(m)["source"]] = int64(m.GetCounter().GetValue())
		}
	}
	return all
}
