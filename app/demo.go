//go:build !production

package app

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/simulator"
)

const (
	demoInterval       = 50 * time.Millisecond
	demoReadKeys       = 40  // number of entities that are read; keys with low numbers are read most often
	demoPrefetchedKeys = 160 // number of prefetched entities, including the demoReadKeys entities that are also read

	// One of demoMissingEvery reads is a read of an entity that the upstream does not have. One of
	// demoRefreshEvery reads is followed by an explicit refresh, and one of demoChangeEvery reads by
	// a change of the upstream's content.
	demoMissingEvery, demoRefreshEvery, demoChangeEvery = 50, 40, 100
	// demoMissingKeyReads is the number of reads after which the missing entity's key changes. The
	// first read of each missing key enqueues a refresh, and the following reads of it get
	// NOT_FOUND.
	demoMissingKeyReads = 3 * demoMissingEvery
)

const (
	// demoFreshFor replaces a longer freshFor of the facet. Most reads are then FRESH, and the
	// first STALE read comes within ten seconds of the start.
	demoFreshFor = 6 * time.Second
	// demoPrefetchInterval is the prefetch interval of every tier: the shortest interval that the
	// configuration allows.
	demoPrefetchInterval = time.Minute
)

// demoRetryDelays replaces the configured delays between the retries of a failed request.
var demoRetryDelays = []time.Duration{5 * time.Second, 15 * time.Second, 30 * time.Second}

// shortenIntervals changes the first facet so that staleness, retries and prefetching are
// visible within seconds instead of hours. Quotas stay as configured.
func shortenIntervals(config Config) {
	name, facet := firstFacet(config)
	s := config.Sources[name]
	f := s.Facets[facet]
	f.FreshFor, f.Retry = min(f.FreshFor, demoFreshFor), demoRetryDelays
	s.Facets[facet] = f
	c, known := s.Prefetch.Facets[facet]
	if !known {
		c = scheduler.DefaultConfig()
	}
	if s.Prefetch.Facets == nil {
		s.Prefetch.Facets = map[string]scheduler.Config{}
	}
	c.Mode, c.NotBefore, c.Jitter, c.Backoff = scheduler.Tiers, 0, 0, demoPrefetchInterval
	c.Tiers.Hot.Every, c.Tiers.Warm.Every, c.Tiers.Cold.Every = demoPrefetchInterval, demoPrefetchInterval, demoPrefetchInterval
	c.Cooldown = scheduler.Cooldown{Automatic: demoFreshFor, Manual: demoFreshFor}
	s.Prefetch.Facets[facet] = c
	config.Sources[name] = s
}

// demo generates the load of a few users through the HTTP API.
type demo struct {
	name, facet string
	upstream    *simulatedUpstream
	client      *client.Client
}

func newDemo(base string, config Config, w *simulatedUpstream) (*demo, error) {
	name, facet := firstFacet(config)
	c, err := client.New(base, client.Options{Timeout: 5 * time.Second, MaxRetries: -1, Transport: http.DefaultTransport})
	return &demo{name, facet, w, c}, err
}

// run sends a read every demoInterval until ctx ends. It reads some entities often and others
// rarely, and sometimes an entity that the upstream does not have.
func (d *demo) run(ctx context.Context) error {
	registered := false
	n := 0
	poll.Every(ctx, demoInterval, func(ctx context.Context) {
		key := fmt.Sprintf("demo-%d", int(demoReadKeys*rand.Float64()*rand.Float64())) //nolint:gosec // not a secret
		if n%demoMissingEvery == demoMissingEvery/4 {
			key = fmt.Sprintf("notfound-%d", n/demoMissingKeyReads)
		}
		entity := "/v1/" + d.name + "/" + d.facet + "/" + key
		status := d.send(ctx, http.MethodGet, entity, nil)
		if status == http.StatusOK && !registered { // register entities only after a read with status 200, which shows that the limiter grants calls; if entities were due earlier, the scheduler would wait 10 s
			d.register(ctx)
			registered = true
		}
		if n%demoRefreshEvery == demoRefreshEvery/2 {
			d.send(ctx, http.MethodPost, entity+"/refresh", nil)
		}
		if n%demoChangeEvery == 0 {
			_ = d.upstream.simulator.Control(simulator.Control{ChangePercent: 30 * rand.Float64()}) //nolint:gosec // not a secret
		}
		n++
	})
	return nil
}

// register registers the demo's entities for prefetching.
func (d *demo) register(ctx context.Context) {
	type order struct {
		Key string `json:"key"`
	}
	all := make([]order, demoPrefetchedKeys)
	for i := range all {
		all[i].Key = fmt.Sprintf("demo-%d", i)
	}
	d.send(ctx, http.MethodPost, "/admin/v1/entities", map[string]any{"source": d.name, "facet": d.facet, "entities": all})
}

// send sends a request and returns the HTTP status, or 0 without a response. It ignores the
// response body: the demo shows its effects in the console and in metrics.
func (d *demo) send(ctx context.Context, method, path string, body any) (status int) {
	resp, _ := d.client.Send(ctx, method, path, body)
	return resp.Code
}
