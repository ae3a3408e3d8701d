package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store/prefetched"
)

// withPrefetch applies an override to the source's prefetch settings. If the result is invalid, it
// returns all errors. It ignores o.Enabled, which is not part of the configuration.
func (s SourceConfig) withPrefetch(o settings.PrefetchOverride) (SourceConfig, error) {
	if len(o.Facets) == 0 {
		return s, nil
	}
	s.Prefetch.Facets = maps.Clone(s.Prefetch.Facets)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.Facets)) {
		c, there := s.Prefetch.Facets[name]
		if !there || c.Mode == scheduler.Off {
			errs = append(errs, fmt.Errorf("facets.%s: the configuration does not prefetch this facet; it prefetches %s", name, joinNames(s.Prefetch.prefetchedFacets())))
			continue
		}
		change := o.Facets[name]
		for _, of := range []struct {
			to   *time.Duration
			from *settings.Duration
		}{
			{&c.Tiers.Hot.Every, change.Hot},
			{&c.Tiers.Warm.Every, change.Warm},
			{&c.Tiers.Cold.Every, change.Cold},
			{&c.MinInterval, change.MinInterval},
			{&c.MaxInterval, change.MaxInterval},
		} {
			if of.from != nil {
				*of.to = time.Duration(*of.from)
			}
		}
		if a := change.Active; a != nil {
			c.Active = scheduler.Active{Status: scheduler.Status(a.Status), Unless: a.Unless, Params: a.Params}
		}
		s.Prefetch.Facets[name] = c
	}
	if len(errs) == 0 {
		_, err := s.newSchedule()
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// prefetchedFacets returns the facets that the configuration prefetches.
func (c PrefetchConfig) prefetchedFacets() map[string]scheduler.Config {
	all := map[string]scheduler.Config{}
	for name, f := range c.Facets {
		if f.Mode != scheduler.Off {
			all[name] = f
		}
	}
	return all
}

// prefetch returns the prefetch settings after an override is applied. If they are invalid, it
// returns all errors. It is used as settings.Source.Prefetch.
func (s SourceConfig) prefetch(o settings.PrefetchOverride) (settings.Prefetch, error) {
	changed, err := s.withPrefetch(o)
	if err != nil {
		return settings.Prefetch{}, err
	}
	p := settings.Prefetch{Enabled: prefetchEnabled(o), Facets: map[string]settings.PrefetchFacet{}}
	for name, c := range changed.Prefetch.prefetchedFacets() {
		p.Facets[name] = settings.PrefetchFacet{
			Mode: string(c.Mode), Hot: settings.Duration(c.Tiers.Hot.Every), Warm: settings.Duration(c.Tiers.Warm.Every), Cold: settings.Duration(c.Tiers.Cold.Every),
			MinInterval: settings.Duration(c.MinInterval), MaxInterval: settings.Duration(c.MaxInterval),
			Active: settings.Active{Status: settings.Status(c.Active.Status), Unless: c.Active.Unless, Params: c.Active.Params},
		}
	}
	return p, nil
}

func prefetchEnabled(o settings.PrefetchOverride) bool { return o.Enabled == nil || *o.Enabled }

const (
	// prefetchReadInterval is the interval at which prefetch settings are read, and
	// prefetchReadTimeout bounds one read. A change of the settings is thus in force within 2 s.
	prefetchReadInterval = time.Second
	prefetchReadTimeout  = 500 * time.Millisecond
)

// livePrefetch holds the prefetch settings in force of one source: the configured values, replaced
// by the stored override. While the override can't be read, the override that was read last stays
// in force. Its methods may be called concurrently.
type livePrefetch struct {
	source string
	config SourceConfig
	base   *scheduler.Schedule // the configured schedule, without an override
	read   func(ctx context.Context, source string) (settings.PrefetchOverride, error)
	log    *slog.Logger

	mu         sync.Mutex
	readAt     time.Time
	override   settings.PrefetchOverride // the override that was last read from the database
	current    *scheduler.Schedule
	changed    SourceConfig // the source's configuration with the override applied; the schedule "current" is built from it
	conditions observe.Conditions
}

func (p parts) livePrefetch(source string) (*livePrefetch, error) {
	c := p.config.Sources[source]
	schedule, err := c.newSchedule()
	if err != nil {
		return nil, fmt.Errorf("sources.%s.prefetch.%w", source, err)
	}
	return &livePrefetch{source: source, config: c, base: schedule, current: schedule, changed: c, read: p.settings().Prefetch, log: p.log.With("source", source)}, nil
}

// now returns the schedule in force, and whether prefetching is enabled.
func (l *livePrefetch) now(ctx context.Context) (*scheduler.Schedule, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.readAt) >= prefetchReadInterval {
		ctx, cancel := context.WithTimeout(ctx, prefetchReadTimeout)
		o, err := l.read(ctx, l.source)
		cancel()
		l.readAt = time.Now()
		l.apply(o, err)
	}
	return l.current, prefetchEnabled(l.override)
}

// inForce returns the source's configuration with the settings in force, and whether prefetching
// is disabled.
func (l *livePrefetch) inForce(ctx context.Context) (c SourceConfig, disabled bool) {
	_, enabled := l.now(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, !enabled
}

// apply puts an override in force. If err is not nil, the override could not be read; apply then
// logs the error, and the last settings stay in force.
func (l *livePrefetch) apply(o settings.PrefetchOverride, err error) {
	if !errors.Is(err, context.Canceled) {
		l.conditions.Record(l.log, observe.Condition{
			Event: "prefetch_settings_unread", Failing: "prefetch settings can't be read; the previous settings stay in force", Recovered: "reading the prefetch settings works again",
		}, err)
	}
	if err != nil || reflect.DeepEqual(o, l.override) {
		return
	}
	var schedule *scheduler.Schedule
	changed, err := l.config.withPrefetch(o)
	if err == nil {
		schedule, err = changed.newSchedule()
	}
	if err != nil { // a newer configuration no longer allows the override
		l.log.Error("prefetch override invalid, configured settings in force; reset it with `freshet settings set`", "err", err)
		changed, schedule = l.config, l.base
	}
	l.override, l.changed, l.current = o, changed, schedule.WithPriceOf(l.base)
	l.log.Info("prefetch settings changed", "enabled", prefetchEnabled(o), "facets_changed", len(o.Facets))
}

// Prefetches reports whether the configuration prefetches the facet. It is true also while
// prefetching is disabled, so that reads are still counted.
func (l *livePrefetch) Prefetches(facet string) bool { return l.base.Prefetches(facet) }

// FirstDue returns the first due time of an entity that is registered now, and whether its facet is
// prefetched.
func (l *livePrefetch) FirstDue(r prefetched.RegisteredEntity, now time.Time) (time.Time, bool) {
	s, _ := l.now(context.Background())
	return s.FirstDue(r, now)
}

// ReadsMakeDue reports whether an entity becomes due at once because its number of reads has risen.
// It is called in a database transaction, so it uses the settings that were read last.
func (l *livePrefetch) ReadsMakeDue(r prefetched.RegisteredEntity, before, after float64) bool {
	l.mu.Lock()
	s := l.current
	l.mu.Unlock()
	return s.ReadsMakeDue(r, before, after)
}
