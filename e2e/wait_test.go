package e2e

import (
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/client"
)

// newClient returns a client for a query service. It sends each read once, and without conditions, so
// that the result has the exact times of the stored snapshot.
func (f *fleet) newClient(api string) *client.Client {
	f.Helper()
	c, err := client.New(api, client.Options{MaxRetries: -1, MaxCacheBytes: -1, Transport: f.client.Transport})
	f.check(err)
	return c
}

// On a Redis Cluster the two query services may be subscribed at different nodes. Both query services
// must receive the worker's notification.
func TestWait_ReturnsAfterStoreByAnotherProcess(t *testing.T) {
	t.Parallel()
	f := newClusterFleet(t, "--limit", "500/1s", "--latency", "300ms-400ms")
	clients := []*client.Client{f.newClient(f.query()), f.newClient(f.query())}
	f.worker()
	entity := client.Entity{Source: f.Source, Facet: "character", Key: "somebody"}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			got, err := clients[i%2].Get(f.Context(), entity, client.Wait(25*time.Second))
			if err != nil || got.Freshness != client.Fresh {
				t.Errorf("reader %d: got %s, %v, want FRESH", i, got.Freshness, err)
			}
		})
	}
	wg.Wait()
	equal(t, "calls for one entity", f.stats().Arrivals, 1)

	// A refresh through one query service must invalidate the entity in the cache of the other
	// query service.
	before, err := clients[0].Get(f.Context(), entity)
	f.check(err)
	_, err = clients[1].Get(f.Context(), entity)
	f.check(err)
	refreshed, err := clients[1].Refresh(f.Context(), entity, client.Wait(25*time.Second))
	f.check(err)
	equal(t, "freshness after the refresh", refreshed.Freshness, client.Fresh)
	f.until(timeout, "a later snapshot from the other process", func() bool {
		after, err := clients[0].Get(f.Context(), entity)
		return err == nil && after.LastCheckedAt.After(before.LastCheckedAt)
	})
}
