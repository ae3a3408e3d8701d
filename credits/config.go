package credits

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Config has the settings of credits. Without plans, refreshes cost nothing.
type Config struct {
	// Costs are the numbers of credits that actions cost.
	Costs Costs `yaml:"costs"`
	// Plans are the plans by name. A client with the scope plan:NAME has that plan. Every other client
	// has the plan default, which is required if there is any plan.
	Plans map[string]Plan `yaml:"plans"`
	// Hold is how long credits are set aside for a refresh. If the refresh has no result by then,
	// the client gets these credits back.
	Hold time.Duration `yaml:"hold"`
	// WhenAway is the effect of an unavailable database on refreshes: they are refused (503), or they
	// are allowed and cost nothing.
	WhenAway WhenAway `yaml:"whenAway" enum:"refuse,allow"`
}

// Costs are the credits of the actions that cost something.
type Costs struct {
	// Refresh is the number of credits of the refresh of one key.
	Refresh int64 `yaml:"refresh"`
}

// Plan is the number of credits that a client gets at regular intervals.
type Plan struct {
	// Amount is the number of credits of each interval. Credits that are left at its end expire.
	Amount int64 `yaml:"amount"`
	// Every is the length of the interval. The first refresh after its end begins the next one.
	Every time.Duration `yaml:"every"`
}

// WhenAway is the effect of an unavailable database on refreshes.
type WhenAway string

// The values of WhenAway.
const (
	Refuse WhenAway = "refuse"
	Allow  WhenAway = "allow"
)

// defaultPlan is the name of the plan of clients without the scope plan:NAME.
const defaultPlan = "default"

const (
	minHold, maxHold   = time.Minute, 24 * time.Hour
	minEvery, maxEvery = time.Minute, 366 * 24 * time.Hour
	// maxAmount bounds each grant. Sums of grants then stay far below the largest bigint.
	maxAmount = 1_000_000_000_000
)

// planName matches the valid names of plans. Package access uses the same rule for the scope plan:NAME.
var planName = regexp.MustCompile("^[0-9A-Za-z_-]{1,40}$")

// DefaultConfig returns the default settings.
func DefaultConfig() Config {
	return Config{Costs: Costs{Refresh: 1}, Hold: 30 * time.Minute, WhenAway: Refuse}
}

// Enabled reports whether refreshes cost credits.
func (c Config) Enabled() bool { return len(c.Plans) > 0 }

// Check returns all errors of the settings. Each error begins with the path of the wrong setting,
// relative to "credits".
func (c Config) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Costs.Refresh < 1 || c.Costs.Refresh > maxAmount {
		fail("costs.refresh: %d must be from 1 to %d", c.Costs.Refresh, int64(maxAmount))
	}
	if c.Hold < minHold || c.Hold > maxHold {
		fail("hold: %v must be from %v to %v", c.Hold, minHold, maxHold)
	}
	if c.WhenAway != Refuse && c.WhenAway != Allow {
		fail("whenAway: %q must be refuse or allow", c.WhenAway)
	}
	names := slices.Sorted(maps.Keys(c.Plans))
	if _, known := c.Plans[defaultPlan]; c.Enabled() && !known {
		fail("plans: the plan default is missing; clients without a scope plan:NAME have it (there are: %s)", strings.Join(names, ", "))
	}
	for _, name := range names {
		p := c.Plans[name]
		if !planName.MatchString(name) {
			fail("plans.%.50s: the name must have 1 to 40 letters, digits, - and _, because it is part of the scope plan:NAME", name)
		}
		if p.Amount < c.Costs.Refresh || p.Amount > maxAmount {
			fail("plans.%s.amount: %d must be from %d (costs.refresh) to %d", name, p.Amount, c.Costs.Refresh, int64(maxAmount))
		}
		if p.Every < minEvery || p.Every > maxEvery {
			fail("plans.%s.every: %v must be from %v to %v, as in 24h", name, p.Every, minEvery, maxEvery)
		}
	}
	return errors.Join(errs...)
}

// plan returns the configured plan with this name, or the plan default.
func (c Config) plan(name string) (string, Plan) {
	if p, known := c.Plans[name]; known {
		return name, p
	}
	return defaultPlan, c.Plans[defaultPlan]
}
