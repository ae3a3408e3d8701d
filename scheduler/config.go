package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Mode says how intervals are chosen.
type Mode string

// The modes.
const (
	Off      Mode = "off"      // nothing is prefetched
	Tiers    Mode = "tiers"    // by tier
	Adaptive Mode = "adaptive" // by each entity's own changes and reads
)

// Config is how a facet is prefetched. The yaml tags are its form in the configuration
// file.
type Config struct {
	Mode  Mode    `yaml:"mode"`
	Tiers TierSet `yaml:"tiers"`
	// MinInterval and Most bound the intervals of the adaptive mode.
	MinInterval time.Duration `yaml:"minInterval"`
	MaxInterval time.Duration `yaml:"maxInterval"`
	// NotBefore is the clock time before which the day's content is not ready.
	NotBefore Clock `yaml:"notBefore,omitempty"`
	// TimeZone is where NotBefore is read; empty: UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
	// Jitter is by how much a due time may lie behind its slot.
	Jitter   time.Duration `yaml:"jitter"`
	Cooldown Cooldown      `yaml:"cooldown"`
	// Active says which entities are asked for by themselves.
	Active Active `yaml:"active,omitempty"`
	// Triggers are, by facet, those that a change of this one refreshes at once.
	Triggers map[string]Trigger `yaml:"triggers,omitempty"`
	// Backoff is how long after a failure it is asked for again, and doubles with
	// each one that follows.
	Backoff time.Duration `yaml:"backoff"`
}

// TierSet says how often each tier is fetched.
type TierSet struct {
	Hot  Tier `yaml:"hot"`
	Warm Tier `yaml:"warm"`
	Cold Tier `yaml:"cold"`
}

// Tier is how often an entity of it is fetched, and from how many reads a day it is one
// (Cold: from none).
type Tier struct {
	Every time.Duration `yaml:"every"`
	Reads float64       `yaml:"reads,omitempty"`
}

// Cooldown is how long the scheduler leaves an entity alone after a refresh.
type Cooldown struct {
	Automatic time.Duration `yaml:"automatic"` // after a prefetch, a trigger, a retry or a replay
	Manual    time.Duration `yaml:"manual"`    // after a refresh for a reader or a person
}

// Trigger is what a change of one facet does to another.
type Trigger struct {
	// Backoff: a facet that was refreshed within it is left alone.
	Backoff time.Duration `yaml:"backoff"`
	// Quiet delays the refresh until no change was seen for that long; 0: it follows at once.
	// A change is seen when this facet is checked, so Quiet is of use from about the interval
	// of its checks on.
	Quiet time.Duration `yaml:"quiet,omitempty"`
	// MaxDelay bounds the delay from the first change on, since changes may never pause. 0: ten
	// times Quiet.
	MaxDelay time.Duration `yaml:"maxDelay,omitempty"`
}

// The bounds of a trigger's delay.
const (
	minQuiet, maxQuiet = time.Second, 24 * time.Hour
	maxDelay           = 7 * 24 * time.Hour
	delayQuiets        = 10 // MaxDelay that is left out, in times Quiet
)

// Delays returns Quiet and MaxDelay as they hold.
func (t Trigger) Delays() (quiet, longest time.Duration) {
	if t.MaxDelay == 0 {
		return t.Quiet, min(delayQuiets*t.Quiet, maxDelay)
	}
	return t.Quiet, t.MaxDelay
}

func (t Trigger) check(name string) error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("triggers.%s.%w", name, fmt.Errorf(format, args...)))
	}
	if t.Backoff < 0 || t.Backoff > maxInterval {
		fail("backoff: %v must be from 0 to %v", t.Backoff, maxInterval)
	}
	if t.Quiet != 0 && (t.Quiet < minQuiet || t.Quiet > maxQuiet) {
		fail("quiet: %v must be from %v to %v; leave it out to refresh at each change", t.Quiet, minQuiet, maxQuiet)
	}
	switch {
	case t.MaxDelay == 0:
	case t.Quiet == 0:
		fail("maxDelay: %v bounds how long a refresh waits for quiet; set quiet too, or leave maxDelay out", t.MaxDelay)
	case t.MaxDelay < t.Quiet || t.MaxDelay > maxDelay:
		fail("maxDelay: %v must be from quiet, %v, to %v", t.MaxDelay, t.Quiet, maxDelay)
	}
	return errors.Join(errs...)
}

// Clock is a time of day, in minutes after midnight. Its text form is 02:00.
type Clock int

// UnmarshalText reads hours and minutes.
func (c *Clock) UnmarshalText(text []byte) error {
	t, err := time.Parse("15:04", string(text))
	if err != nil {
		return fmt.Errorf("%q must be a time of day as in 02:00", text)
	}
	*c = Clock(t.Hour()*60 + t.Minute())
	return nil
}

// MarshalText writes it as it is read.
func (c Clock) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%02d:%02d", int(c)/60, int(c)%60), nil
}

// DefaultConfig returns the settings of a facet that says nothing else. A tier is worth
// its interval from about one read in each.
func DefaultConfig() Config {
	return Config{
		Mode: Off,
		Tiers: TierSet{
			Hot:  Tier{Every: time.Hour, Reads: 24},
			Warm: Tier{Every: 6 * time.Hour, Reads: 4},
			Cold: Tier{Every: 24 * time.Hour},
		},
		MinInterval: 30 * time.Minute,
		MaxInterval: 7 * 24 * time.Hour,
		Jitter:      time.Minute,
		Cooldown:    Cooldown{Automatic: 10 * time.Minute, Manual: 30 * time.Minute},
		Backoff:     10 * time.Minute,
	}
}

// UnmarshalYAML lets a facet that leaves settings out have the default ones.
func (c *Config) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Config
	p := plain(DefaultConfig())
	p.Mode = Tiers // who writes a prefetch wants one
	err := unmarshal(&p)
	*c = Config(p)
	return err
}

const (
	minInterval = time.Minute
	maxInterval = 90 * 24 * time.Hour
)

// Check returns all mistakes.
func (c Config) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]Mode{Off, Tiers, Adaptive}, c.Mode) {
		fail("mode: %q must be off, tiers or adaptive", c.Mode)
	}
	hot, warm, cold := c.Tiers.Hot, c.Tiers.Warm, c.Tiers.Cold
	rise := minInterval <= hot.Every && hot.Every <= warm.Every && warm.Every <= cold.Every && cold.Every <= maxInterval
	if !rise { // then nothing is bound by them
		fail("tiers: hot.every, warm.every and cold.every are %v, %v and %v; they must rise, from %v to %v", hot.Every, warm.Every, cold.Every, minInterval, maxInterval)
	}
	if !(warm.Reads > 0 && hot.Reads >= warm.Reads && hot.Reads <= 1e9) { // so that a NaN fails too
		fail("tiers: hot.reads and warm.reads are %v and %v a day; warm's must be above 0, and hot's at least as many", hot.Reads, warm.Reads)
	}
	if cold.Reads != 0 {
		fail("tiers.cold.reads: %v must be left out; cold is what is read less than warm", cold.Reads)
	}
	span := minInterval <= c.MinInterval && c.MinInterval <= c.MaxInterval && c.MaxInterval <= maxInterval
	if !span {
		name := "minInterval"
		if c.MinInterval == DefaultConfig().MinInterval || c.MaxInterval > maxInterval { // it was not written, or is not what is wrong
			name = "maxInterval"
		}
		fail("%s: minInterval and maxInterval are %v and %v; they must rise, from %v to %v", name, c.MinInterval, c.MaxInterval, minInterval, maxInterval)
	}
	if c.NotBefore < 0 || c.NotBefore > 12*60 {
		fail("notBefore: %s must be a time of day up to 12:00", clockText(c.NotBefore))
	}
	if _, err := time.LoadLocation(c.TimeZone); err != nil {
		fail("timeZone: %q is not known; write it as in Asia/Seoul", c.TimeZone)
	}
	if c.Jitter < 0 || rise && c.Jitter > hot.Every/8 {
		fail("jitter: %v must be from 0 to an eighth of tiers.hot.every, %v", c.Jitter, hot.Every/8)
	}
	if a := c.Cooldown.Automatic; a < 0 || rise && a > hot.Every || span && c.Mode == Adaptive && a > c.MinInterval {
		fail("cooldown.automatic: %v must be from 0 to the shortest interval (tiers.hot.every %v; where mode is adaptive, minInterval %v too)", a, hot.Every, c.MinInterval)
	}
	if m := c.Cooldown.Manual; m < 0 || rise && m > cold.Every {
		fail("cooldown.manual: %v must be from 0 to tiers.cold.every, %v", m, cold.Every)
	}
	if c.Backoff < minInterval || rise && c.Backoff > cold.Every {
		fail("backoff: %v must be from %v to tiers.cold.every, %v", c.Backoff, minInterval, cold.Every)
	}
	errs = append(errs, c.Active.check())
	for _, facet := range slices.Sorted(maps.Keys(c.Triggers)) {
		errs = append(errs, c.Triggers[facet].check(facet))
	}
	return errors.Join(errs...)
}

func clockText(c Clock) string {
	text, _ := c.MarshalText()
	return string(text)
}

// CheckTriggers returns an error if a facet triggers itself, over others too, or one
// that there is not. A circle of triggers would need no change to go on for ever.
func CheckTriggers(facets map[string]Config) error {
	var errs []error
	for _, from := range slices.Sorted(maps.Keys(facets)) {
		reached := map[string]bool{}
		next := slices.Sorted(maps.Keys(facets[from].Triggers))
		for _, to := range next {
			if _, known := facets[to]; !known {
				errs = append(errs, fmt.Errorf("facets.%s.triggers.%s: there is no facet %q; there are %s", from, to, to, strings.Join(slices.Sorted(maps.Keys(facets)), ", ")))
			}
		}
		for len(next) > 0 {
			to := next[0]
			next = next[1:]
			if !reached[to] {
				reached[to] = true
				next = slices.AppendSeq(next, maps.Keys(facets[to].Triggers))
			}
		}
		if reached[from] {
			errs = append(errs, fmt.Errorf("facets.%s.triggers: it triggers itself, over others or not; leave one out", from))
		}
	}
	return errors.Join(errs...)
}
