package app

import (
	"context"
	"maps"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/status"
)

// scheduleReader returns the reader of the schedules of all sources.
func (p queryRole) scheduleReader() *status.ScheduleReader {
	live := map[string]*livePrefetch{} // no entry: the source's configuration is invalid
	for name := range p.config.Sources {
		if l, err := p.livePrefetch(name); err == nil {
			live[name] = l
		}
	}
	return status.NewScheduleReader(status.ScheduleDeps{
		Sources: p.config.sourceNames(), Store: p.store,
		Prefetch: func(ctx context.Context, source string) (status.Prefetch, error) {
			c, disabled := p.config.Sources[source], false
			if l, valid := live[source]; valid { // show the settings in force; if reading them panics, show the configured settings
				status.CatchPanic(p.log, func() { c, disabled = l.inForce(ctx) })
			}
			return c.prefetchStatus(disabled)
		},
		Capacity: func(ctx context.Context, source string) (scheduler.Capacity, error) {
			return p.capacity(ctx, source, float64(maxDocuments(p.config.Sources[source].Facets)))
		},
		Heartbeats: func(ctx context.Context, source string) ([]status.Heartbeat, error) {
			return status.ReadHeartbeats(ctx, p.rdb, source)
		},
		Collections: collection.New(p.store).Totals,
		Metrics:     p.reg, Log: p.log,
	})
}

// prefetchStatus returns the prefetch settings, the schedule and the budget of a source. Facets without
// prefetch settings have the defaults.
func (s SourceConfig) prefetchStatus(disabled bool) (status.Prefetch, error) {
	schedule, err := s.newSchedule()
	if err != nil {
		return status.Prefetch{}, err
	}
	budget, err := scheduler.NewBudget(s.spending())
	if err != nil {
		return status.Prefetch{}, err
	}
	facets := map[string]scheduler.Config{}
	for name := range s.Facets {
		facets[name] = scheduler.DefaultConfig()
	}
	maps.Copy(facets, s.Prefetch.Facets)
	return status.Prefetch{Disabled: disabled, Facets: facets, Schedule: schedule, Budget: budget}, nil
}
