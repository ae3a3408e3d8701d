package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
)

// A worker of its own, two query processes, a Redis Cluster whose nodes they may
// each hear from another of: a settle is told to all.
func TestReadersOfTwoProcessesAreReleasedByTheWorkerOfAThird(t *testing.T) {
	servicetest.RedisClusterAddresses(t)
	f := newFleet(t, true, "--limit", "500/1s", "--latency", "300ms-400ms")
	apis := []string{f.query(), f.query()}
	f.worker()
	read := func(api, how string) (status int, body struct {
		Freshness string
		Checked   time.Time `json:"lastCheckedAt"`
	},
	) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s/v1/%s/character/%s", api, f.source, how), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := f.client.Do(req)
		if err != nil {
			t.Error(err)
			return 0, body
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err == nil {
			err = json.Unmarshal(text, &body)
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		return resp.StatusCode, body
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if status, body := read(apis[i%2], "somebody?wait=25s"); status != http.StatusOK || body.Freshness != "FRESH" {
				t.Errorf("reader %d: %d %+v", i, status, body)
			}
		})
	}
	wg.Wait()
	if s := f.stats(); s.Arrivals != 1 {
		t.Errorf("%d calls for one entity", s.Arrivals)
	}

	// What one process has in memory is overtaken by a refresh that the other had made.
	_, before := read(apis[0], "somebody")
	_, _ = read(apis[1], "somebody")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("%s/v1/%s/character/somebody/refresh?wait=25s", apis[1], f.source), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the refresh: %d", resp.StatusCode)
	}
	f.until(patience, "the other process's look", func() bool {
		_, after := read(apis[0], "somebody")
		return after.Checked.After(before.Checked)
	})
}
