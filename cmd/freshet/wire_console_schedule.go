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
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/store"
)

const (
	// dueTTL and countsEvery are for how long what was read of the database is shown
	// before it is read again; dueTakes and countsTake bound a look.
	dueTTL, dueTimeout       = 2 * time.Second, 5 * time.Second
	countsTTL, countsTimeout = time.Minute, 30 * time.Second
	// maxStaleness is how much older it may become while the next look is under way, or fails.
	maxStaleness = 30 * time.Second
	// firstReadWait is how long somebody waits for the first look.
	firstReadWait = 300 * time.Millisecond
	// maxDueCounted are counted of what is due.
	maxDueCounted = 1000
)

// backlogs count what is due, each up to a bound and by an index.
type backlogs interface {
	TierBacklogs(ctx context.Context, source string, now time.Time, most int) ([]store.TierBacklog, error)
	RetryBacklog(ctx context.Context, source string, by time.Time, most int) (store.Backlog, error)
	OutboxBacklog(ctx context.Context, source string, by time.Time, most int) (store.Backlog, error)
}

// withStopState is a view whose state tells of a stop, and of its end, as soon as it is set: Redis hears
// of it from the workers, within two seconds, or never if none runs. What is set is nil where
// that could not be read.
func withStopState(view limiter.View, set *limiter.Override) limiter.View {
	switch obeyed := view.State == "stopped"; {
	case set == nil:
	case set.Stopped && !obeyed:
		view.State, view.Until = console.StateStopping, nil
		view.High.PerSecond, view.Low.PerSecond = 0, 0
	case !set.Stopped && obeyed && view.NewestRevision > view.Revision:
		view.State = console.StateResuming
	}
	return view
}

// scheduleReader tells the console of the schedules.
type scheduleReader struct {
	parts parts
	of    map[string]*scheduleCache
	live  map[string]*livePrefetch  // missing: its configuration has a mistake
	asked *cached[map[string]int64] // by source
}

// scheduleCache is what is remembered of a source's schedule.
type scheduleCache struct {
	due    cached[console.Due]
	counts cached[map[tierKey]entityCount]
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
	s := scheduleReader{p, map[string]*scheduleCache{}, map[string]*livePrefetch{}, &cached[map[string]int64]{}}
	for name := range p.config.Sources {
		s.of[name] = &scheduleCache{}
		if live, err := p.livePrefetch(name); err == nil {
			s.live[name] = live
		}
	}
	return s
}

// Schedule returns how it stands with a source's schedule.
func (s scheduleReader) Schedule(ctx context.Context, source string) console.ScheduleState {
	read, known := s.of[source]
	if !known {
		return console.ScheduleState{Due: console.Due{Error: "there is no such source"}}
	}
	c, now := s.parts.config.Sources[source], time.Now()
	var all console.ScheduleState
	c, all.Disabled = s.inForce(ctx, source, c)
	all.FeedRate.Error, all.Schedulers.Error = errPanic.Error(), errPanic.Error() // unless they end
	var asked sync.WaitGroup
	ask := func(f func()) {
		asked.Go(func() {
			var err error
			defer recoverPanic(s.parts.log, &err)
			f()
		})
	}
	ask(func() { all.FeedRate, all.RateCap = s.feed(ctx, source, c, now) })
	ask(func() { all.Schedulers = s.schedulers(ctx, source) })
	ask(func() {
		due, trouble := read.due.value(ctx, dueTTL, dueTimeout, func(ctx context.Context) (due console.Due, err error) {
			defer recoverPanic(s.parts.log, &err)
			return s.due(ctx, source)
		})
		due.Error = s.trouble(trouble)
		all.Due = due
	})
	ask(func() {
		counts, trouble := read.counts.value(ctx, countsTTL, countsTimeout, func(ctx context.Context) (found map[tierKey]entityCount, err error) {
			defer recoverPanic(s.parts.log, &err)
			return s.counts(ctx, source)
		})
		all.Facets = facetSchedules(c, counts, s.trouble(trouble), now)
	})
	counters, _ := s.asked.value(ctx, dueTTL, dueTimeout, func(context.Context) (found map[string]int64, err error) {
		defer recoverPanic(s.parts.log, &err)
		return s.counters(), nil
	})
	if n, there := counters[source]; there {
		all.Requested = &n
	}
	asked.Wait()
	return all
}

// inForce returns the source with the settings in force, or as it is configured if they are
// not known, and whether prefetching is disabled.
func (s scheduleReader) inForce(ctx context.Context, source string, configured SourceConfig) (c SourceConfig, disabled bool) {
	c = configured
	live, ok := s.live[source]
	if !ok {
		return c, false
	}
	var err error
	defer recoverPanic(s.parts.log, &err)
	return live.inForce(ctx)
}

// trouble is why something is not known; the log has the error.
func (s scheduleReader) trouble(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errNotReadYet):
		return "it is being read"
	case errors.Is(err, errPanic):
		return err.Error()
	case !errors.Is(err, context.Canceled):
		s.parts.log.Debug("the console shows a part of the schedule as not known", "err", err)
	}
	return "the database does not answer"
}

// due counts what is due: up to a bound each, by an index.
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

// counts counts the enabled entities of each tier, or has the database estimate them.
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

// facetSchedules is how the facets are configured, with what was counted of each.
func facetSchedules(c SourceConfig, counts map[tierKey]entityCount, trouble string, now time.Time) []console.FacetSchedule {
	schedule, err := c.newSchedule()
	if err != nil { // the process would not have started
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
			shown.Tiers[tier] = console.TierSchedule{Interval: of.Every, Entities: console.Reading[int64]{Value: n.n, Error: trouble}, Exact: n.exact}
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

// feed is what the schedulers may feed now, reckoned as they do.
func (s scheduleReader) feed(ctx context.Context, source string, c SourceConfig, now time.Time) (feed console.Reading[float64], rateCap *float64) {
	schedule, err := c.newSchedule()
	if err == nil {
		if rate, there := schedule.RateCap(now); there {
			rateCap = &rate
		}
	}
	budget, err := scheduler.NewBudget(c.spending())
	if err != nil {
		return console.Reading[float64]{Error: "the configuration has a mistake"}, rateCap
	}
	room, err := s.parts.room(ctx, source, c.maxFacetCost())
	if err != nil {
		return console.Reading[float64]{Error: "Redis does not answer"}, rateCap
	}
	return console.Reading[float64]{Value: budget.Rate(room, now)}, rateCap
}

// schedulers are those that have said lately that they live.
func (s scheduleReader) schedulers(ctx context.Context, source string) console.Reading[[]console.SchedulerHeartbeat] {
	all, err := readSchedulers(ctx, s.parts.rdb, source)
	if err != nil {
		return console.Reading[[]console.SchedulerHeartbeat]{Error: "Redis does not answer"}
	}
	return console.Reading[[]console.SchedulerHeartbeat]{Value: all}
}

// readSchedulers reads what share writes.
func readSchedulers(ctx context.Context, rdb redis.UniversalClient, source string) ([]console.SchedulerHeartbeat, error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("ask Redis for the time: %w", err)
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

// counters are how many entities the schedulers of this process have asked for, by source.
func (s scheduleReader) counters() map[string]int64 {
	families, err := s.parts.registry.Gather() // with an error it is all that could be
	if err != nil {
		s.parts.log.Debug("not every metric could be gathered", "err", err)
	}
	all := map[string]int64{}
	for _, family := range families {
		if family.GetName() != metricPrefix(s.parts.config.Metrics.Namespace)+"prefetch_requested_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			all[labelsOf(m)["source"]] = int64(m.GetCounter().GetValue())
		}
	}
	return all
}

// errNotReadYet says that the first look at something has not ended.
var errNotReadYet = errors.New("it is being read")

// cached remembers what was read last. It is read by one at a time, whoever asks, and nobody
// waits for it who has what was read before.
type cached[T any] struct {
	mu    sync.Mutex
	read  T
	err   error
	at    time.Time     // when it was read; zero: never
	tried time.Time     // when the last look began
	under chan struct{} // closed when the look under way ends; nil: none is
}

// value returns what was read, and reads it anew where that is older than every.
func (k *cached[T]) value(ctx context.Context, every, takes time.Duration, read func(context.Context) (T, error)) (T, error) {
	k.mu.Lock()
	if k.under == nil && time.Since(k.tried) >= every {
		k.tried, k.under = time.Now(), make(chan struct{})
		go k.look(context.WithoutCancel(ctx), takes, read)
	}
	under, first := k.under, k.at.IsZero() || time.Since(k.at) > every+maxStaleness // nobody has looked for long
	k.mu.Unlock()
	if under != nil && first {
		wait := time.NewTimer(firstReadWait)
		defer wait.Stop()
		select {
		case <-under:
		case <-wait.C:
		case <-ctx.Done():
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var none T
	switch {
	case !k.at.IsZero() && time.Since(k.at) <= every+maxStaleness:
		return k.read, nil
	case k.err != nil:
		return none, k.err
	}
	return none, errNotReadYet
}

func (k *cached[T]) look(ctx context.Context, takes time.Duration, read func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(ctx, takes)
	defer cancel()
	found, err := read(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err = err; err == nil {
		k.read, k.at = found, time.Now()
	}
	close(k.under)
	k.under = nil
}
