//go:build !production

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/simulator"
)

const (
	demoInterval       = 50 * time.Millisecond
	demoReadKeys       = 40  // entities that people read, the first of them most often
	demoPrefetchedKeys = 160 // entities that are prefetched, those among them

	// Of so many reads one is for an entity that does not exist, one by somebody who
	// wants it refreshed at once, and one is the last before content changes upstream.
	demoMissingEvery, demoRefreshEvery, demoChangeEvery = 50, 40, 100
	// demoMissingKeyReads is for how many reads that entity is the same: the first one has it looked
	// for, and later ones are told that it does not exist.
	demoMissingKeyReads = 3 * demoMissingEvery
)

const (
	// demoFreshFor is for how long the demo's content is fresh: most of the reads are
	// answered so, and the first is stale within ten seconds of the start.
	demoFreshFor = 6 * time.Second
	// demoPrefetchInterval is how often each entity is prefetched: as often as may be.
	demoPrefetchInterval = time.Minute
)

// demoRetryDelays is how long the demo waits before each scheduled retry.
var demoRetryDelays = []time.Duration{5 * time.Second, 15 * time.Second, 30 * time.Second}

// shortenIntervals has what the demo shows happen within seconds, which would take hours: that
// content grows old, and is prefetched whatever the hour. Quotas stay as they are.
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
		s.Prefetch.Facets = facetPrefetches{}
	}
	c.Mode, c.NotBefore, c.Jitter, c.Backoff = scheduler.Tiers, 0, 0, demoPrefetchInterval
	c.Tiers.Hot.Every, c.Tiers.Warm.Every, c.Tiers.Cold.Every = demoPrefetchInterval, demoPrefetchInterval, demoPrefetchInterval
	c.Cooldown = scheduler.Cooldown{Automatic: demoFreshFor, Manual: demoFreshFor}
	s.Prefetch.Facets[facet] = c
	config.Sources[name] = s
}

// demo does what a few people would, through the front door.
type demo struct {
	base, name, facet string
	upstream          *simulatedUpstream // nil: the upstream is real, and the demo only reads
	client            *http.Client
}

func newDemo(base string, config Config, w *simulatedUpstream) *demo {
	name, facet := firstFacet(config)
	return &demo{base, name, facet, w, &http.Client{Timeout: 5 * time.Second}}
}

// run reads some entities often, others seldom, and now and then one that does not exist.
func (d *demo) run(ctx context.Context) error {
	registered := d.upstream == nil
	tick := time.NewTicker(demoInterval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		key := fmt.Sprintf("demo-%d", int(demoReadKeys*rand.Float64()*rand.Float64())) //nolint:gosec // not a secret
		if n%demoMissingEvery == demoMissingEvery/4 {
			key = fmt.Sprintf("absent-%d", n/demoMissingKeyReads)
		}
		entity := "/v1/" + d.name + "/" + d.facet + "/" + key
		status := d.send(ctx, http.MethodGet, entity, nil)
		if status == http.StatusOK && !registered { // a scheduler that looks before any call is possible looks again only after 10 s
			d.register(ctx)
			registered = true
		}
		if d.upstream == nil {
			continue // a real upstream's quota is not for a demo to spend
		}
		if n%demoRefreshEvery == demoRefreshEvery/2 {
			d.send(ctx, http.MethodPost, entity+"/refresh", nil)
		}
		if n%demoChangeEvery == 0 {
			_ = d.upstream.simulator.Control(simulator.Control{ChangePercent: 30 * rand.Float64()}) //nolint:gosec // not a secret
		}
	}
}

// register has the demo's entities prefetched.
func (d *demo) register(ctx context.Context) {
	type order struct {
		Key string `json:"key"`
	}
	all := make([]order, demoPrefetchedKeys)
	for i := range all {
		all[i].Key = fmt.Sprintf("demo-%d", i)
	}
	text, err := json.Marshal(map[string]any{"source": d.name, "facet": d.facet, "entities": all})
	if err == nil {
		d.send(ctx, http.MethodPost, "/admin/v1/entities", text)
	}
}

// send sends a request and returns the status of its answer, 0 if there is none: what
// follows from it is to be seen elsewhere.
func (d *demo) send(ctx context.Context, method, path string, body []byte) int {
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, bytes.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}
