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
	demoEvery = 50 * time.Millisecond
	demoRead  = 40  // entities that people read, the first of them most often
	demoKnown = 160 // entities that are prefetched, those among them

	// Of so many reads one is for an entity that does not exist, one by somebody who
	// wants it refreshed at once, and one is the last before content changes upstream.
	demoAbsent, demoRefresh, demoChange = 50, 40, 100
	// demoAbsentFor is for how many reads that entity is the same: the first one has it looked
	// for, and later ones are told that it does not exist.
	demoAbsentFor = 3 * demoAbsent
)

const (
	// demoFresh is for how long the demo's content is fresh: most of the reads are
	// answered so, and the first is stale within ten seconds of the start.
	demoFresh = 6 * time.Second
	// demoEach is how often each entity is prefetched: as often as may be.
	demoEach = time.Minute
)

// demoRetry is how long the demo waits before each scheduled retry.
var demoRetry = []time.Duration{5 * time.Second, 15 * time.Second, 30 * time.Second}

// quicken has what the demo shows happen within seconds, which would take hours: that
// content grows old, and is prefetched whatever the hour. Quotas stay as they are.
func quicken(config Config) {
	name, facet := shown(config)
	s := config.Sources[name]
	f := s.Facets[facet]
	f.FreshFor, f.Retry = min(f.FreshFor, demoFresh), demoRetry
	s.Facets[facet] = f
	c, known := s.Prefetch.Facets[facet]
	if !known {
		c = scheduler.DefaultConfig()
	}
	if s.Prefetch.Facets == nil {
		s.Prefetch.Facets = prefetches{}
	}
	c.Mode, c.NotBefore, c.Jitter, c.Backoff = scheduler.Tiers, 0, 0, demoEach
	c.Tiers.Hot.Every, c.Tiers.Warm.Every, c.Tiers.Cold.Every = demoEach, demoEach, demoEach
	c.Cooldown = scheduler.Cooldown{Automatic: demoFresh, Manual: demoFresh}
	s.Prefetch.Facets[facet] = c
	config.Sources[name] = s
}

// demo does what a few people would, through the front door.
type demo struct {
	base, name, facet string
	weather           *weather // nil: the upstream is real, and the demo only reads
	client            *http.Client
}

func newDemo(base string, config Config, w *weather) *demo {
	name, facet := shown(config)
	return &demo{base, name, facet, w, &http.Client{Timeout: 5 * time.Second}}
}

// run reads some entities often, others seldom, and now and then one that does not exist.
func (d *demo) run(ctx context.Context) error {
	registered := d.weather == nil
	tick := time.NewTicker(demoEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		key := fmt.Sprintf("demo-%d", int(demoRead*rand.Float64()*rand.Float64())) //nolint:gosec // not a secret
		if n%demoAbsent == demoAbsent/4 {
			key = fmt.Sprintf("absent-%d", n/demoAbsentFor)
		}
		entity := "/v1/" + d.name + "/" + d.facet + "/" + key
		status := d.ask(ctx, http.MethodGet, entity, nil)
		if status == http.StatusOK && !registered { // a scheduler that looks before any call is possible looks again only after 10 s
			d.register(ctx)
			registered = true
		}
		if d.weather == nil {
			continue // a real upstream's quota is not for a demo to spend
		}
		if n%demoRefresh == demoRefresh/2 {
			d.ask(ctx, http.MethodPost, entity+"/refresh", nil)
		}
		if n%demoChange == 0 {
			_ = d.weather.upstream.Control(simulator.Control{ChangePercent: 30 * rand.Float64()}) //nolint:gosec // not a secret
		}
	}
}

// register has the demo's entities prefetched.
func (d *demo) register(ctx context.Context) {
	type order struct {
		Key string `json:"key"`
	}
	all := make([]order, demoKnown)
	for i := range all {
		all[i].Key = fmt.Sprintf("demo-%d", i)
	}
	text, err := json.Marshal(map[string]any{"source": d.name, "facet": d.facet, "entities": all})
	if err == nil {
		d.ask(ctx, http.MethodPost, "/admin/v1/entities", text)
	}
}

// ask sends a request and returns the status of its answer, 0 if there is none: what
// follows from it is to be seen elsewhere.
func (d *demo) ask(ctx context.Context, method, path string, body []byte) int {
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
