package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
)

// set gives dev's simulator the latency and the faults of the named fault scenario.
func (d *dev) set(scenario string) {
	d.Helper()
	healthy := `{"min": "30ms", "max": "1.7s"}`
	latency, faults := healthy, ""
	switch scenario {
	case "rate-limited":
		faults = `{"kind": "429", "retryAfter": "3"}`
	case "poison-keys":
		faults = `{"key": "3$", "kind": "bad-parameter"}, {"key": "[15]7$", "kind": "500"}`
	case "slow":
		latency = `{"min": "1s", "max": "6s"}`
	case "outage":
		faults = `{"kind": "reset", "percent": 30}, {"kind": "500"}`
	case "maintenance":
		faults = `{"kind": "game-maintenance", "percent": 50}, {"kind": "503-maintenance"}`
	}
	d.control(d.upstream+"/_control", `{"latency": `+latency+`, "faults": [`+faults+`]}`)
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
	servicetest.WaitFor(t, eventTimeout, "a backoff", func() bool { return d.view().State == limiter.StateBackingOff && d.stats().ByStatus[429] > 0 })
	d.control(lines[1][2], lines[1][1])
	d.until("a fresh answer", "during", isFresh)

	bare := startDev(t, "--no-demo", "--upstream", "http://127.0.0.1:1")
	if strings.Contains(bare.text, "_control") || strings.Contains(bare.text, "429") {
		t.Errorf("with a real upstream: got %s, want a text without _control and 429", bare.text)
	}
}
