package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
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
	waitFor(t, eventTimeout, "answers afterwards", func() bool { return answered.Load() > 20 })
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

// set starts a fault scenario of a running dev process through the simulator's control API.
func (d *dev) set(name string) {
	d.Helper()
	for _, c := range faultScenarios {
		if c.Name == name {
			text, err := json.Marshal(c.control())
			if err != nil {
				d.Fatal(err)
			}
			d.control(d.upstream+"/_control", string(text))
			return
		}
	}
	d.Fatalf("fault scenario %q: got none, want one", name)
}

func (d *dev) control(url, text string) {
	d.Helper()
	req, err := http.NewRequestWithContext(d.Context(), http.MethodPost, url, strings.NewReader(text))
	if err != nil {
		d.Fatal(err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		d.Fatalf("%s: got status %d, want 204", text, resp.StatusCode)
	}
}

func TestDev_PrintedCurlsSetAndClearFaults(t *testing.T) {
	d := startDev(t, "--no-demo")
	lines := regexp.MustCompile(`: +curl -d '([^']+)' (http://\S+)\n`).FindAllStringSubmatch(d.text, -1)
	if len(lines) != 2 {
		t.Fatalf("dev output: got %q, want 2 commands with curl -d", d.text)
	}
	d.until("a fresh answer", "before", isFresh)
	d.control(lines[0][2], lines[0][1])
	if r := d.read("during"); r.status != 202 {
		t.Errorf("rate-limited: got %+v, want status 202", r)
	}
	waitFor(t, eventTimeout, "a backoff", func() bool { return d.view().State == limiter.StateBackingOff && d.stats().ByStatus[429] > 0 })
	d.control(lines[1][2], lines[1][1])
	d.until("a fresh answer", "during", isFresh)

	bare := startDev(t, "--no-demo", "--upstream", "http://127.0.0.1:1")
	if strings.Contains(bare.text, "_control") || strings.Contains(bare.text, "429") {
		t.Errorf("with a real upstream: got %s, want a text without _control and 429", bare.text)
	}
}

// runDevWithBrowser runs dev with a fake browser, which returns the error ended. It returns the
// opened URL, the console's URL and the log lines about the browser.
func runDevWithBrowser(t *testing.T, o devOptions, ended error) (url, console, log string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	p := &program{stdout: &out, stderr: &errs}
	o.listen, o.noDemo = "127.0.0.1:0", true
	o.browser = func(_ context.Context, u string) error {
		url = u
		cancel()
		return ended
	}
	if err := p.runDev(ctx, o, time.Now()); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(errs.String()) { // stderr also has other log lines, because dev was stopped early
		if strings.Contains(line, "browser") {
			log += line
		}
	}
	return url, regexp.MustCompile(`Console +(\S+)`).FindStringSubmatch(out.String())[1], log
}

func TestDev_OpensConsoleOnRequest(t *testing.T) {
	url, console, log := runDevWithBrowser(t, devOptions{open: true}, nil)
	if url == "" || url != console || !strings.HasSuffix(url, "/console") || log != "" {
		t.Errorf("got URL %q, printed %q, log %q; want the printed URL with the suffix /console, no log", url, console, log)
	}
	_, console, log = runDevWithBrowser(t, devOptions{open: true}, errors.New("no such program"))
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, "no such program") || !strings.Contains(log, console) {
		t.Errorf("log: got %q, want one line that contains %q, %q", log, "no such program", console)
	}
}
