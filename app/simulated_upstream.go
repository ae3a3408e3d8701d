//go:build !production

package app

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/simulator"
)

// simulatedUpstream runs fault scenarios in dev's simulator, for the console. It reads the current
// scenario from the simulator's settings, so it also detects changes that were made through the
// simulator's control API.
type simulatedUpstream struct {
	simulator *simulator.Simulator
	url       string // the simulator's URL
}

// healthyLatency is the response latency without faults.
var healthyLatency = simulator.Range{Min: 30 * time.Millisecond, Max: 1700 * time.Millisecond}

// faultScenario is a scenario with the simulator settings that cause it.
type faultScenario struct {
	console.FaultScenario
	latency simulator.Range
	faults  []simulator.Fault // never nil, because nil leaves the simulator's faults unchanged
}

// faultScenarios are all scenarios; the first is the healthy upstream. In the scenario poison-keys
// fewer than half of the calls may fail; otherwise the circuit breaker would open for the whole
// upstream.
var faultScenarios = []faultScenario{
	{
		console.FaultScenario{Name: "healthy", Title: "Healthy", Description: "Every call succeeds within two seconds. After an outage, calls continue with the breaker's next probe, which may take a minute, and at half the rate for some seconds."},
		healthyLatency,
		[]simulator.Fault{},
	},
	{
		console.FaultScenario{Name: "rate-limited", Title: "Rate limited (429)", Description: "Every call gets 429 with Retry-After: 3. All calls back off for three seconds, again and again. Reads continue, and their snapshots become stale."},
		healthyLatency,
		[]simulator.Fault{{Kind: simulator.TooManyRequests, RetryAfter: "3"}},
	},
	{
		console.FaultScenario{Name: "outage", Title: "Outage", Description: "Every call ends with a 500 or a connection reset. Within seconds the circuit breaker opens: only single probes are sent, and no request becomes a dead letter."},
		healthyLatency,
		[]simulator.Fault{{Kind: simulator.Reset, Percent: new(30.0)}, {Kind: simulator.InternalError}},
	},
	{
		console.FaultScenario{Name: "slow", Title: "Slow", Description: "Responses take one to six seconds. More calls are in flight, and refreshes take longer."},
		simulator.Range{Min: time.Second, Max: 6 * time.Second},
		[]simulator.Fault{},
	},
	{
		console.FaultScenario{Name: "maintenance", Title: "Maintenance", Description: "Every call gets a maintenance error. All calls stop at once; a probe is sent after ten seconds, and then at growing intervals."},
		healthyLatency,
		[]simulator.Fault{{Kind: simulator.GameMaintenance, Percent: new(50.0)}, {Kind: simulator.Maintenance}},
	},
	{
		console.FaultScenario{Name: "poison-keys", Title: "Poison keys", Description: "Calls for keys that end with 3 are rejected permanently, and their requests become dead letters. Keys that end with 17 or 57 fail and are retried. All other keys succeed."},
		healthyLatency,
		[]simulator.Fault{{Key: "3$", Kind: simulator.BadParameter}, {Key: "[15]7$", Kind: simulator.InternalError}},
	},
}

func (c faultScenario) control() simulator.Control {
	return simulator.Control{Latency: &c.latency, Faults: c.faults}
}

// List returns all scenarios. The first is the healthy upstream.
func (w *simulatedUpstream) List() []console.FaultScenario {
	all := make([]console.FaultScenario, len(faultScenarios))
	for i, c := range faultScenarios {
		all[i] = c.FaultScenario
	}
	return all
}

// Current returns the name of the current scenario. It is empty if the simulator's settings match
// no scenario, because a client of the simulator's control API changed them.
func (w *simulatedUpstream) Current() string {
	now := w.simulator.CurrentControl()
	for _, c := range faultScenarios {
		if reflect.DeepEqual(now, c.control()) {
			return c.Name
		}
	}
	return ""
}

// Set starts a scenario by its name. Calls in flight end under the previous scenario.
func (w *simulatedUpstream) Set(_ context.Context, name string) error {
	names := make([]string, len(faultScenarios))
	for i, c := range faultScenarios {
		if c.Name == name {
			return w.simulator.Control(c.control())
		}
		names[i] = c.Name
	}
	return fmt.Errorf("unknown fault scenario %q; the scenarios are %s", name, strings.Join(names, ", "))
}

// curlCommands returns two curl commands for dev's simulator. The command `set` makes the simulator
// respond with status 429. The command `reset` clears all faults.
func (w *simulatedUpstream) curlCommands() (set, reset string) {
	return `curl -d '{"faults":[{"kind":"429","retryAfter":"3"}]}' ` + w.url + "/_control",
		`curl -d '{"faults":[]}' ` + w.url + "/_control"
}
