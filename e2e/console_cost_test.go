package e2e

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// viewersPerKey is below the maximum number of live streams of one client.
const viewersPerKey = 5

// The console takes its samples in the query service. They must cost little, whether somebody watches
// or not.
func TestConsole_CostsLittle(t *testing.T) {
	parallelUnlessQuiet(t)
	const viewers = 20
	measure := 3 * time.Second
	if *quietMachine {
		measure = 30 * time.Second
	}
	f := newSite(t)
	f.Token = rand.Text() + rand.Text()
	f.prepare("--limit", "500/1s", "--latency", "30ms-50ms")
	f.worker()
	p := f.queryProcess()
	pid := p.Process.Pid
	used := func() float64 { // the mean number of processors that the query service uses
		before := harness.CPUTime(pid)
		<-time.After(measure)
		return (harness.CPUTime(pid) - before).Seconds() / measure.Seconds()
	}
	<-time.After(measure) // the start is not measured
	idle := used()
	memory, err := harness.PeakMemory(pid)
	f.check(err)

	var streams sync.WaitGroup
	t.Cleanup(streams.Wait)
	events := make(chan error, viewers)
	for i := range viewers / viewersPerKey {
		token, err := f.CreateKey(t.Context(), p.URL(), fmt.Sprintf("viewer-%d", i), "inspect")
		f.check(err)
		for range viewersPerKey {
			streams.Go(func() { events <- watchConsole(t, p.URL()+"/console/live?charts=1", token, events) })
		}
	}
	for range viewers {
		f.check(<-events)
	}
	watched := used()
	after, err := harness.PeakMemory(pid)
	f.check(err)
	t.Logf("processors of the query service: %.2f %% idle, %.2f %% with %d viewers; peak memory: %d MB, then %d MB",
		100*idle, 100*watched, viewers, memory>>20, after>>20)
	if !*quietMachine {
		return
	}
	if idle > 0.01 {
		t.Errorf("processors of an idle query service: got %.2f %%, want at most 1 %%", 100*idle)
	}
	if watched > 0.05 {
		t.Errorf("processors with %d viewers: got %.2f %%, want at most 5 %%", viewers, 100*watched)
	}
}

// watchConsole reads a live stream of the console until the test ends. It sends nil to `events` after
// the first event.
func watchConsole(t *testing.T, url, token string, events chan<- error) error {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := harness.Bearer{Token: token}.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("live stream of the console: %s", resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for first := true; lines.Scan(); {
		if first && strings.HasPrefix(lines.Text(), "data:") {
			first = false
			events <- nil
		}
	}
	return lines.Err()
}
