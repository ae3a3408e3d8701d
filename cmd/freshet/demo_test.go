package main

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
)

// sum adds the samples of a metric that have all the labels, such as end="not_found".
func (d *dev) sum(name string, labels ...string) (total float64) {
	d.Helper()
	_, text := d.do(http.MethodGet, d.api+"/metrics")
next:
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "freshet_"+name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue next
			}
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			d.Fatal(err)
		}
		total += n
	}
	return total
}

func TestDemo_ProducesActivity(t *testing.T) {
	t.Parallel()
	d := startDev(t)
	if !strings.Contains(d.text, "fresh for 6s") {
		t.Errorf("output: got\n%s\nwant a text that contains %q", d.text, "fresh for 6s")
	}
	for what, labels := range map[string][]string{
		"rate_limiter_acquired_total": {`"HIGH"`, `"LOW"`},
		"reads_total":                 {`"FRESH"`, `"STALE"`, `"UPDATING"`, `"NOT_FOUND"`},
		"settled_total":               {`"changed"`, `"touched"`, `"not_found"`},
		"prefetch_requested_total":    {"source"},
	} {
		for _, label := range labels {
			servicetest.WaitFor(t, eventTimeout, what+" "+label, func() bool { return d.sum(what, label) > 0 })
		}
	}
	d.mustRun(0, []string{"160"}, "entities", "list", "--count", "--prefix", "demo-")
	before := d.stats().Arrivals
	<-time.After(5 * time.Second)
	if calls := d.stats().Arrivals - before; calls > 150 {
		t.Errorf("calls in five seconds: got %d, want at most 150", calls)
	}
	servicetest.WaitFor(t, eventTimeout, "five more calls", func() bool { return d.stats().Arrivals >= before+5 })
	if code, stderr := d.stop(); code != 0 { // stderr is not checked, because dev may log warnings on a slow machine
		t.Errorf("stop: got exit %d, want 0: %s", code, stderr)
	}
}

// readNewKeys sends ten reads a second until the test ends, each of another key, so that each read
// enqueues an update request.
func (d *dev) readNewKeys() {
	d.Helper()
	c, err := client.New(d.api, client.Options{MaxRetries: -1, Transport: d.client.Transport})
	if err != nil {
		d.Fatal(err)
	}
	ctx, stop := context.WithCancel(d.Context())
	var load sync.WaitGroup
	load.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			select {
			case <-ctx.Done():
			case <-tick.C:
				_, _ = c.Get(ctx, client.Entity{Source: "nexon", Facet: "character", Key: "new-" + strconv.Itoa(n)}) // an error is ignored, because reads fail in some fault scenarios
			}
		}
	})
	d.Cleanup(func() { stop(); load.Wait() })
}

func TestFaultScenario_VisibleAndRecovers(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--simulate", "--config", smallDocument(t, "retry: [1m, 2m, 4m]", "retry: [2s, 2s, 2s]"))
	d.readNewKeys()
	succeeded := func() float64 { return d.sum("upstream_duration_seconds_count", `"ok"`) }
	state := func(want limiter.State) func() bool { return func() bool { return d.view().State == want } }
	flows := func() {
		t.Helper()
		d.set("healthy")
		servicetest.WaitFor(t, 2*eventTimeout, "the end of the pause", func() bool { s := d.view().State; return s == limiter.StateFlowing || s == limiter.StateRamping })
		before := succeeded()
		servicetest.WaitFor(t, 2*eventTimeout, "ten successful calls", func() bool { return succeeded() >= before+10 })
	}
	flows()

	d.set("rate-limited")
	servicetest.WaitFor(t, eventTimeout, "a backoff", state(limiter.StateBackingOff))
	servicetest.WaitFor(t, eventTimeout, "a counted backoff", func() bool { return d.sum("rate_limiter_backoffs_total") > 0 })
	flows()

	d.set("poison-keys")
	servicetest.WaitFor(t, eventTimeout, "a dead letter", func() bool { return d.sum("settled_total", `"dead_letter"`) > 0 })
	servicetest.WaitFor(t, eventTimeout, "a dead letter on its topic", func() bool { return d.sum("dlq_message_count") > 0 })
	servicetest.WaitFor(t, eventTimeout, "a scheduled retry", func() bool { return d.sum("settled_total", `"retrying"`) > 0 })
	servicetest.WaitFor(t, eventTimeout, "a requested retry", func() bool { return d.sum("retries_requested_total") > 0 })
	if s := d.view().State; s != limiter.StateFlowing && s != limiter.StateRamping {
		t.Errorf("source state with poison keys: got %s, want flowing or ramping", s)
	}
	flows()

	d.set("slow")
	var long float64
	servicetest.WaitFor(t, eventTimeout, "ten long calls", func() bool {
		long = d.sum("upstream_duration_seconds_count", `"ok"`) - d.sum("upstream_duration_seconds_bucket", `"ok"`, `le="2`)
		return long >= 10
	})
	flows()

	letters := d.sum("settled_total", `"dead_letter"`)
	d.set("outage")
	servicetest.WaitFor(t, eventTimeout, "a stop with probes", state(limiter.StateBreakerOpen))
	if n := d.sum("settled_total", `"dead_letter"`); n > letters {
		t.Errorf("dead letters of an outage: got %v, want 0", n-letters)
	}
	flows()

	d.set("maintenance")
	servicetest.WaitFor(t, eventTimeout, "a stop with probes", state(limiter.StateBreakerOpen))
	servicetest.WaitFor(t, eventTimeout, "a call of the class maintenance", func() bool { return d.sum("upstream_duration_seconds_count", `"maintenance"`) > 0 })
	flows()
}
