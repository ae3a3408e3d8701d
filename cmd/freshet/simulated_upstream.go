//go:build !production

package main

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/simulator"
)

// simulatedUpstream is how the simulated upstream of dev behaves. It is kept by the simulator
// alone, so that whoever sets it, here or by the simulator's own control API, all see
// the same.
type simulatedUpstream struct {
	simulator *simulator.Simulator
	url       string // the simulator's URL
}

// healthyLatency is how long a healthy upstream takes to answer.
var healthyLatency = simulator.Range{Min: 30 * time.Millisecond, Max: 1700 * time.Millisecond}

// faultScenario is a weather and what makes it.
type faultScenario struct {
	console.FaultScenario
	latency simulator.Range
	faults  []simulator.Fault // empty but not nil: the simulator would keep its own
}

// faultScenarios are all there are. A weather that lets some calls fail must leave more than
// half of them well, or the upstream is taken to be sick and not the entities.
var faultScenarios = []faultScenario{
	{
		console.FaultScenario{Name: "well", Title: "Well", Description: "Every call is answered within two seconds; after a stop they go on with the next probe, which may be a minute away, and at half the rate for some seconds."},
		healthyLatency,
		[]simulator.Fault{},
	},
	{
		console.FaultScenario{Name: "storm", Title: "Storm of 429s", Description: "Every call is refused with Retry-After: 3, so all calls stop for as long, again and again, while reads go on and grow stale."},
		healthyLatency,
		[]simulator.Fault{{Kind: simulator.TooManyRequests, RetryAfter: "3"}},
	},
	{
		console.FaultScenario{Name: "outage", Title: "Outage", Description: "Every call ends with a 500 or a broken connection, so within seconds all calls stop but for single probes, and nothing is given up."},
		healthyLatency,
		[]simulator.Fault{{Kind: simulator.Reset, Percent: new(30.0)}, {Kind: simulator.InternalError}},
	},
	{
		console.FaultScenario{Name: "slow", Title: "Slow", Description: "Answers take from one to six seconds, so more calls are under way at once, and what is asked for comes later."},
		simulator.Range{Min: time.Second, Max: 6 * time.Second},
		[]simulator.Fault{},
	},
	{
		console.FaultScenario{Name: "maintenance", Title: "Maintenance", Description: "Every call is told that the API or the game is closed, so all calls stop at once, and one probes after ten seconds and then less and less often."},
		healthyLatency,
		[]simulator.Fault{{Kind: simulator.GameMaintenance, Percent: new(50.0)}, {Kind: simulator.Maintenance}},
	},
	{
		console.FaultScenario{Name: "poisoned", Title: "Poisoned keys", Description: "Keys that end with 3 are refused for good and become dead letters, those that end with 17 or 57 fail and are retried, and all others go on."},
		healthyLatency,
		[]simulator.Fault{{Key: "3$", Kind: simulator.BadParameter}, {Key: "[15]7$", Kind: simulator.InternalError}},
	},
}

func (c faultScenario) control() simulator.Control {
	return simulator.Control{Latency: &c.latency, Faults: c.faults}
}

// List returns every weather, the good one first.
func (w *simulatedUpstream) List() []console.FaultScenario {
	all := make([]console.FaultScenario, len(faultScenarios))
	for i, c := range faultScenarios {
		all[i] = c.FaultScenario
	}
	return all
}

// Current returns the name of the weather; empty if somebody has made one of their own by
// the simulator's control API.
func (w *simulatedUpstream) Current() string {
	now := w.simulator.CurrentControl()
	for _, c := range faultScenarios {
		if reflect.DeepEqual(now, c.control()) {
			return c.Name
		}
	}
	return ""
}

// Set changes the weather by its name. Calls that are under way end as they began.
func (w *simulatedUpstream) Set(_ context.Context, name string) error {
	names := make([]string, len(faultScenarios))
	for i, c := range faultScenarios {
		if c.Name == name {
			return w.simulator.Control(c.control())
		}
		names[i] = c.Name
	}
	return fmt.Errorf("there is no weather %q; there are %s", name, strings.Join(names, ", "))
}

// curlCommands returns the commands that bring a storm, and end it, without a console.
func (w *simulatedUpstream) curlCommands() (breaks, mends string) {
	return `curl -d '{"faults":[{"kind":"429","retryAfter":"3"}]}' ` + w.url + "/_control",
		`curl -d '{"faults":[]}' ` + w.url + "/_control"
}
