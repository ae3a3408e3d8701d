package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
)

func TestFaultScenario_AnySequenceUnderLoad(t *testing.T) {
	upstream := simulator.New(simulator.Config{})
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	t.Cleanup(upstream.Close)
	w := &simulatedUpstream{upstream, server.URL}
	kinds := w.List()
	if len(kinds) != 6 || kinds[0].Name != "healthy" {
		t.Fatalf("scenarios: got %+v, want 6, the first healthy", kinds)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var sent, answered atomic.Int64
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/maplestory/v1/character/basic?ocid=a", http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				sent.Add(1)
				resp, err := client.Do(req)
				if err != nil {
					continue // the simulator reset the connection, as in an outage, so the call has no response
				}
				answered.Add(1)
				_ = resp.Body.Close()
			}
		})
	}
	for _, from := range kinds {
		for _, to := range kinds {
			for _, name := range []string{from.Name, to.Name} {
				if err := w.Set(t.Context(), name); err != nil || w.Current() != name {
					t.Errorf("set %s: got %v, current %q, want no error, current %q", name, err, w.Current(), name)
				}
			}
		}
	}
	if err := w.Set(t.Context(), "healthy"); err != nil {
		t.Fatal(err)
	}
	servicetest.WaitFor(t, eventTimeout, "answers afterwards", func() bool { return answered.Load() > 20 })
	cancel()
	load.Wait()
	if got := upstream.Stats().Arrivals; int64(got) < sent.Load() {
		t.Errorf("calls counted by the simulator: got %d, want at least %d", got, sent.Load())
	}
}

func TestFaultScenario_RejectsUnknownName(t *testing.T) {
	w := &simulatedUpstream{simulator: simulator.New(simulator.Config{})}
	if w.Current() != "" { // a new simulator's settings match no scenario
		t.Errorf("current after control API: got %q, want none", w.Current())
	}
	if err := w.Set(t.Context(), "outage"); err != nil {
		t.Fatal(err)
	}
	err := w.Set(t.Context(), "rain")
	if err == nil || !strings.Contains(err.Error(), `unknown fault scenario "rain"; the scenarios are healthy, rate-limited, outage, slow, maintenance, poison-keys`) || w.Current() != "outage" {
		t.Errorf("got %v, current %q; want an error that names the scenarios, current %q", err, w.Current(), "outage")
	}
}
