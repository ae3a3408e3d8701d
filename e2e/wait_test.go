package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// waited contains fields of the response to a read or refresh that waits for the snapshot.
type waited struct {
	status    int
	Freshness string
	Checked   time.Time `json:"lastCheckedAt"`
}

func (f *fleet) waitFor(method, url string) (w waited, err error) {
	req, err := http.NewRequestWithContext(f.Context(), method, url, http.NoBody)
	if err != nil {
		return w, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return w, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	w.status = resp.StatusCode
	return w, err
}

// On a Redis Cluster the two query services may be subscribed at different nodes. Both query services
// must receive the worker's notification.
func TestWait_ReturnsAfterStoreByAnotherProcess(t *testing.T) {
	t.Parallel()
	f := newClusterFleet(t, "--limit", "500/1s", "--latency", "300ms-400ms")
	apis := []string{f.query(), f.query()}
	f.worker()
	entity := func(api string) string { return fmt.Sprintf("%s/v1/%s/character/somebody", api, f.Source) }
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			got, err := f.waitFor(http.MethodGet, entity(apis[i%2])+"?wait=25s")
			if err != nil || got.status != http.StatusOK || got.Freshness != "FRESH" {
				t.Errorf("reader %d: got %d %s, %v, want 200 FRESH", i, got.status, got.Freshness, err)
			}
		})
	}
	wg.Wait()
	equal(t, "calls for one entity", f.stats().Arrivals, 1)

	// A refresh through one query service must invalidate the entity in the cache of the other
	// query service.
	before, err := f.waitFor(http.MethodGet, entity(apis[0]))
	f.check(err)
	_, err = f.waitFor(http.MethodGet, entity(apis[1]))
	f.check(err)
	refreshed, err := f.waitFor(http.MethodPost, entity(apis[1])+"/refresh?wait=25s")
	f.check(err)
	equal(t, "status of the refresh", refreshed.status, http.StatusOK)
	f.until(timeout, "a later snapshot from the other process", func() bool {
		after, err := f.waitFor(http.MethodGet, entity(apis[0]))
		return err == nil && after.Checked.After(before.Checked)
	})
}
