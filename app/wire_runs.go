package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/runs/api"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// checkRuns returns an error for each invalid setting of the runs of a source.
func checkRuns(s SourceConfig) error {
	var errs []error
	for _, run := range slices.Sorted(maps.Keys(s.Runs)) {
		if err := schemas.CheckName("run", run); err != nil {
			errs = append(errs, fmt.Errorf("runs.%s: %w", run, err))
		}
		if err := s.Runs[run].Check(s.Facets); err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				errs = append(errs, fmt.Errorf("runs.%s.%s", run, line))
			}
		}
	}
	return errors.Join(errs...)
}

// newRunPoller returns the poller of runs of a source.
func newRunPoller(p parts, s *source.Source) *runs.Poller {
	return runs.NewPoller(s, p.config.Sources[s.Name()].Runs, p.store, stepEnqueuer{p.producer}, p.rdb, p.log, p.reg)
}

// newRuns returns the service that starts and shows runs for clients and operators.
func newRuns(p parts, sources map[string]*source.Source) *api.Service {
	configs := map[string]map[string]runs.Config{}
	for name, c := range p.config.Sources {
		configs[name] = c.Runs
	}
	return api.New(api.Deps{
		Store: p.store, Sources: sources, Configs: configs, Redis: p.rdb, Actor: actor, Paid: p.config.Credits.Enabled(), Now: time.Now, Log: p.log,
	})
}

// withRuns adds the service of runs to the dependencies of the query service.
func withRuns(d query.Deps, s *api.Service) query.Deps {
	d.Runs = s
	return d
}

// stepEnqueuer makes a producer usable as runs.Enqueuer.
type stepEnqueuer struct{ *producer.Producer }

// stepEnqueueTimeout is how long RequestSteps waits for Kafka's acknowledgements. It is shorter than
// the lease of a step.
const stepEnqueueTimeout = 20 * time.Second

// RequestSteps enqueues the requests in the LOW lane.
func (e stepEnqueuer) RequestSteps(ctx context.Context, all []runs.Request) []runs.Enqueued {
	ctx, cancel := context.WithTimeout(ctx, stepEnqueueTimeout)
	defer cancel()
	requests := make([]producer.Request, len(all))
	for i, r := range all {
		requests[i] = producer.Request{Entity: r.Entity, Lane: schemas.Low, Reason: schemas.RunStep, Run: r.Run, Page: r.Page, Floor: r.Floor, CorrelationID: r.Run}
	}
	outcomes := make([]runs.Enqueued, len(all))
	for i, r := range e.EnqueueAllAndWait(ctx, requests) {
		switch {
		case r.Published():
			outcomes[i] = runs.Published
		case r.Queued():
			outcomes[i] = runs.Covered
		}
	}
	return outcomes
}
