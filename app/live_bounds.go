package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
)

const (
	// boundsInterval is the interval at which settings are read. A changed quota changes the
	// limits of clients after at most this time.
	boundsInterval = 5 * time.Second
	// boundsTimeout bounds one read of a source's settings.
	boundsTimeout = time.Second
)

// liveBounds holds the limits that apply to each client, by source and facet. It recalculates them
// when the quota in force changes. The quota in force is the configured quota with the newest valid
// override. Its methods may be called concurrently.
type liveBounds struct {
	sources  map[string]SourceConfig
	limits   access.Limits
	settings limiter.Settings
	log      *slog.Logger

	mu         sync.RWMutex // guards the field current
	current    map[string]map[string]producer.Bound
	revisions  map[string]int64 // revision of the applied settings, by source; used by Run only
	conditions observe.Conditions
}

// newLiveBounds returns liveBounds with the limits under the configured quotas.
func newLiveBounds(c Config, settings limiter.Settings, log *slog.Logger) (*liveBounds, error) {
	current, err := c.clientBounds()
	if err != nil {
		return nil, err
	}
	return &liveBounds{
		sources: c.Sources, limits: c.Access.Limits, settings: settings, log: log,
		current: current, revisions: map[string]int64{},
	}, nil
}

// of returns the limits that apply to each client for requests of the entity's facet.
func (b *liveBounds) of(e schemas.Entity) producer.Bound {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.current[e.Source][e.Facet]
}

// Run reads the settings of all sources every boundsInterval until ctx ends.
func (b *liveBounds) Run(ctx context.Context) error {
	follow := func(ctx context.Context) {
		for name := range b.sources {
			b.follow(ctx, name)
		}
	}
	follow(ctx)
	poll.Every(ctx, boundsInterval, follow)
	return nil
}

// follow recalculates the limits of clients of a source from its newest quota settings. The limits
// stay unchanged if these settings are unreadable or invalid.
func (b *liveBounds) follow(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, boundsTimeout)
	defer cancel()
	override, revision, err := b.settings.Quota(ctx, name)
	if errors.Is(err, context.Canceled) {
		return // the context of Run has ended, so this is not a failed read
	}
	b.conditions.Record(b.log, observe.Condition{
		Event: "client_limits_unread", Failing: "client limits can't be read from the settings; the previous limits stay in force", Recovered: "reading the client limits works again", Attr: "source", Value: name,
	}, err)
	if err != nil || revision == b.revisions[name] {
		return
	}
	b.revisions[name] = revision
	s := b.sources[name]
	config, err := s.quota().With(override)
	if err != nil {
		err = fmt.Errorf("apply the settings: %w", err)
	}
	var bounds map[string]producer.Bound
	if err == nil {
		bounds, err = s.clientBounds(config, b.limits)
	}
	if err != nil {
		b.log.Error("the source's changed quota is invalid, so the limits of clients that depend on it stay unchanged", "source", name, "revision", revision, "err", err)
		return
	}
	b.mu.Lock()
	b.current[name] = bounds
	b.mu.Unlock()
	b.log.Info("client limits changed", "source", name, "revision", revision)
}

// clientBounds returns the limits that apply to each client under the configured quotas, by source
// and facet.
func (c Config) clientBounds() (map[string]map[string]producer.Bound, error) {
	all := map[string]map[string]producer.Bound{}
	for name, s := range c.Sources {
		bounds, err := s.clientBounds(s.quota(), c.Access.Limits)
		if err != nil {
			return nil, fmt.Errorf("sources.%s.quota.%w", name, err)
		}
		all[name] = bounds
	}
	return all, nil
}

// clientBounds returns the limits that apply to each client under a quota, by facet.
func (s SourceConfig) clientBounds(config limiter.Config, limits access.Limits) (map[string]producer.Bound, error) {
	quota, err := limiter.NewQuota(config)
	if err != nil {
		return nil, err
	}
	all := map[string]producer.Bound{}
	for facet := range s.Facets {
		all[facet] = s.clientBound(quota, facet, limits)
	}
	return all, nil
}
