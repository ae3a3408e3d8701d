package status

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

const (
	// dueTTL and countsTTL are the ages at which cached values are read from the database again.
	// dueTimeout and countsTimeout bound one such read.
	dueTTL, dueTimeout       = 2 * time.Second, 5 * time.Second
	countsTTL, countsTimeout = time.Minute, 30 * time.Second
	// collectionsTTL is how long the totals of the collections are cached.
	collectionsTTL = 10 * time.Second
	// maxStaleness is how long after its TTL a value is still shown while the next read is in
	// progress or fails.
	maxStaleness = 30 * time.Second
	// firstReadWait is how long a caller waits for a value that was never read before.
	firstReadWait = 300 * time.Millisecond
	// maxDueCounted bounds each count of due entities, retries and outbox events.
	maxDueCounted = 1000
	// maxCollections is the maximum number of collections of a source that are counted.
	maxCollections = 100_000
)

// Backlogs counts due entities, retries and outbox events. Each count uses a database index and
// ends at a limit, so it is fast.
type Backlogs interface {
	TierBacklogs(ctx context.Context, source string, now time.Time, limit int) ([]prefetched.TierBacklog, error)
	RetryBacklog(ctx context.Context, source string, by time.Time, limit int) (store.Backlog, error)
	OutboxBacklog(ctx context.Context, source string, by time.Time, limit int) (store.Backlog, error)
}

// scheduleStore is the database of a ScheduleReader.
type scheduleStore interface {
	Backlogs
	// CountEntities counts registered entities. If exact is false, the database has only estimated
	// the number.
	CountEntities(ctx context.Context, f prefetched.Filter) (n int64, exact bool, err error)
	// NextEntityTime returns the earliest due time; zero: no entity is scheduled.
	NextEntityTime(ctx context.Context, source string) (time.Time, error)
}

// Prefetch is the configuration of a source's prefetching, with the settings in force.
type Prefetch struct {
	Disabled bool
	Facets   map[string]scheduler.Config // prefetch configuration of every facet of the source
	Schedule *scheduler.Schedule
	Budget   *scheduler.Budget
}

// ScheduleDeps are the dependencies of a ScheduleReader.
type ScheduleDeps struct {
	Sources []string
	Store   scheduleStore
	// Prefetch returns the prefetching of a source. It returns an error if its configuration is
	// invalid.
	Prefetch func(ctx context.Context, source string) (Prefetch, error)
	// Capacity returns the rate at which the source's LOW lane may make calls now, and the work
	// that waits in the LOW topic. It returns an error if Redis does not answer.
	Capacity func(ctx context.Context, source string) (scheduler.Capacity, error)
	// Heartbeats returns the live schedulers of a source.
	Heartbeats func(ctx context.Context, source string) ([]Heartbeat, error)
	// Collections returns the totals of a source's collections for each facet. It counts at most this
	// number of collections.
	Collections func(ctx context.Context, source string, most int) ([]collection.Totals, error)
	Metrics     *Metrics // metrics of this process
	Log         *slog.Logger
}

// ScheduleReader reads the states of schedules.
type ScheduleReader struct {
	ScheduleDeps
	sources   map[string]*scheduleCache
	requested Cached[map[string]int64] // number of prefetch requests, by source
}

// scheduleCache caches database reads for one source's schedule.
type scheduleCache struct {
	due         Cached[Due]
	counts      Cached[map[tierKey]enabledEntities]
	collections Cached[[]collection.Totals]
}

type tierKey struct {
	facet string
	tier  prefetched.Tier
}

type enabledEntities struct {
	n     int64
	exact bool
}

// NewScheduleReader returns a reader of the sources' schedules.
func NewScheduleReader(deps ScheduleDeps) *ScheduleReader {
	s := &ScheduleReader{ScheduleDeps: deps, sources: map[string]*scheduleCache{}}
	s.requested.Read = func(context.Context) (map[string]int64, error) { return s.requests(), nil }
	s.requested.Timeout, s.requested.Clock, s.requested.Log = dueTimeout, time.Now, s.Log
	for _, source := range deps.Sources {
		s.sources[source] = &scheduleCache{
			due: Cached[Due]{
				Read: func(ctx context.Context) (Due, error) { return s.due(ctx, source) }, Timeout: dueTimeout, MaxStale: maxStaleness, Clock: time.Now, Log: s.Log,
			},
			counts: Cached[map[tierKey]enabledEntities]{
				Read: func(ctx context.Context) (map[tierKey]enabledEntities, error) { return s.counts(ctx, source) }, Timeout: countsTimeout, MaxStale: maxStaleness, Clock: time.Now, Log: s.Log,
			},
			collections: Cached[[]collection.Totals]{
				Read: func(ctx context.Context) ([]collection.Totals, error) {
					return s.Collections(ctx, source, maxCollections)
				},
				Timeout: countsTimeout, MaxStale: maxStaleness, Clock: time.Now, Log: s.Log,
			},
		}
	}
	return s
}

// Schedule returns the state of a source's schedule. A value that can't be read has an Error.
func (s *ScheduleReader) Schedule(ctx context.Context, source string) Schedule {
	read, known := s.sources[source]
	if !known {
		return Schedule{Due: Due{Error: "unknown source"}}
	}
	now := time.Now()
	all := Schedule{MaxCollections: maxCollections}
	all.FeedRate.Error, all.Schedulers.Error = ErrPanic.Error(), ErrPanic.Error() // each read below replaces its error, unless it panics
	var prefetch Prefetch
	invalid := ErrPanic
	CatchPanic(s.Log, func() { prefetch, invalid = s.Prefetch(ctx, source) })
	all.Disabled = prefetch.Disabled
	var reads sync.WaitGroup
	start := func(f func()) { reads.Go(func() { CatchPanic(s.Log, f) }) }
	readCtx, cancel := context.WithTimeout(ctx, firstReadWait)
	defer cancel()
	start(func() { all.FeedRate, all.RateCap = s.feed(ctx, source, prefetch, invalid, now) })
	start(func() {
		all.Schedulers = Reading[[]Heartbeat]{}
		var err error
		if all.Schedulers.Value, err = s.Heartbeats(ctx, source); err != nil {
			all.Schedulers.Error = "Redis does not answer"
		}
	})
	start(func() {
		due, _, err := read.due.Get(readCtx, dueTTL)
		if err != nil {
			due = Due{Error: s.describe(err)}
		}
		all.Due = due
	})
	start(func() {
		counts, _, err := read.counts.Get(readCtx, countsTTL)
		if invalid == nil {
			all.Facets = facetSchedules(prefetch, counts, s.describe(err), now)
		}
	})
	start(func() {
		totals, _, err := read.collections.Get(readCtx, collectionsTTL)
		all.Collections = Reading[[]collection.Totals]{Value: totals, Error: s.describe(err)}
	})
	requested, _, _ := s.requested.Get(readCtx, dueTTL)
	if n, there := requested[source]; there {
		all.Requested = &n
	}
	reads.Wait()
	return all
}

// describe returns the text that is shown for a failed read of the database; it logs the error.
func (s *ScheduleReader) describe(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errNotReadYet):
		return "the value is being read"
	case errors.Is(err, ErrPanic):
		return err.Error()
	case !errors.Is(err, context.Canceled):
		s.Log.Debug("schedule read failed", "err", err)
	}
	return "the database does not answer"
}

// due counts due entities, retries and outbox events.
func (s *ScheduleReader) due(ctx context.Context, source string) (Due, error) {
	now := time.Now()
	d := Due{At: now, MaxCounted: maxDueCounted}
	var err error
	if d.Next, err = s.Store.NextEntityTime(ctx, source); err != nil {
		return d, err
	}
	if d.Tiers, err = s.Store.TierBacklogs(ctx, source, now, maxDueCounted); err != nil {
		return d, err
	}
	if d.Retries, err = s.Store.RetryBacklog(ctx, source, now, maxDueCounted); err != nil {
		return d, err
	}
	if d.Scheduled, err = s.Store.RetryBacklog(ctx, source, now.AddDate(10, 0, 0), maxDueCounted); err != nil {
		return d, err
	}
	d.Outbox, err = s.Store.OutboxBacklog(ctx, source, now, maxDueCounted)
	return d, err
}

// counts returns the number of enabled entities per facet and tier; large numbers are estimates of
// the database.
func (s *ScheduleReader) counts(ctx context.Context, source string) (map[tierKey]enabledEntities, error) {
	prefetch, err := s.Prefetch(ctx, source)
	if err != nil {
		return nil, err
	}
	counts, enabled := map[tierKey]enabledEntities{}, true
	for facet := range prefetch.Facets {
		for _, tier := range []prefetched.Tier{prefetched.Hot, prefetched.Warm, prefetched.Cold} {
			n, exact, err := s.Store.CountEntities(ctx, prefetched.Filter{Source: source, Facet: facet, Tier: &tier, Enabled: &enabled})
			if err != nil {
				return nil, err
			}
			counts[tierKey{facet, tier}] = enabledEntities{n, exact}
		}
	}
	return counts, nil
}

// facetSchedules returns the prefetch configuration of each facet, with the entity counts.
// `failure` is the reason why the counts are unknown; empty: they are known.
func facetSchedules(p Prefetch, counts map[tierKey]enabledEntities, failure string, now time.Time) []FacetSchedule {
	var all []FacetSchedule
	for _, name := range slices.Sorted(maps.Keys(p.Facets)) {
		f := p.Facets[name]
		shown := FacetSchedule{Facet: name, Mode: string(f.Mode), MinInterval: f.MinInterval, MaxInterval: f.MaxInterval, ReadyAt: p.Schedule.ContentReadyAt(name, now)}
		for tier, of := range map[prefetched.Tier]scheduler.Tier{prefetched.Hot: f.Tiers.Hot, prefetched.Warm: f.Tiers.Warm, prefetched.Cold: f.Tiers.Cold} {
			n := counts[tierKey{name, tier}]
			if failure != "" {
				n = enabledEntities{}
			}
			shown.Tiers[tier] = TierSchedule{Interval: of.Every, Entities: Reading[int64]{Value: n.n, Error: failure}, Exact: n.exact}
		}
		for _, other := range slices.Sorted(maps.Keys(f.Triggers)) {
			t := TriggerSchedule{Facet: other, Backoff: f.Triggers[other].Backoff}
			t.Quiet, t.MaxDelay = f.Triggers[other].Delays()
			shown.Triggers = append(shown.Triggers, t)
		}
		all = append(all, shown)
	}
	return all
}

// feed returns the rate at which the schedulers may enqueue now, in calls a second, and the rate
// cap in force, if there is one. It calculates the rate as the schedulers do. `invalid` is the
// error of an invalid configuration; nil: it is valid.
func (s *ScheduleReader) feed(ctx context.Context, source string, p Prefetch, invalid error, now time.Time) (feed Reading[float64], rateCap *float64) {
	if invalid != nil {
		if errors.Is(invalid, ErrPanic) {
			return Reading[float64]{Error: invalid.Error()}, nil
		}
		return Reading[float64]{Error: "the configuration is invalid"}, nil
	}
	if rate, there := p.Schedule.RateCap(now); there {
		rateCap = &rate
	}
	capacity, err := s.Capacity(ctx, source)
	if err != nil {
		return Reading[float64]{Error: "Redis does not answer"}, rateCap
	}
	return Reading[float64]{Value: p.Budget.Rate(capacity, now)}, rateCap
}

// requests returns the number of prefetch requests of this process's schedulers, by source.
func (s *ScheduleReader) requests() map[string]int64 {
	all := map[string]int64{}
	for _, family := range s.Metrics.gather() {
		if family.GetName() != prefetchMetric {
			continue
		}
		for _, m := range family.GetMetric() {
			all[labelsOf(m)["source"]] = int64(m.GetCounter().GetValue())
		}
	}
	return all
}
