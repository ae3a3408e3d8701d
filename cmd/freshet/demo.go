package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

const (
	demoEvery = 200 * time.Millisecond
	demoKeys  = 200
)

// demo reads as a few people would: some entities often, most seldom, now and
// then one that does not exist. It goes through the front door.
func demo(ctx context.Context, base string, config Config) error {
	name := slices.Sorted(maps.Keys(config.Sources))[0]
	facet := slices.Sorted(maps.Keys(config.Sources[name].Facets))[0]
	client := &http.Client{Timeout: 5 * time.Second}
	tick := time.NewTicker(demoEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		key := fmt.Sprintf("demo-%d", int(float64(demoKeys)*rand.Float64()*rand.Float64())) //nolint:gosec // not a secret
		if n%50 == 49 {
			key = fmt.Sprintf("absent-%d", n)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/"+name+"/"+facet+"/"+key, http.NoBody)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
}
