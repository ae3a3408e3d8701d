package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Mode is how the interval of an entity is chosen.
type Mode string

// Prefetch modes of a facet.
const (
	Off      Mode = "off"      // the facet is not prefetched
	Tiers    Mode = "tiers"    // each tier has one interval for all its entities
	Adaptive Mode = "adaptive" // each entity has its own interval, from its changes and reads
)

// Config is the prefetch configuration of one facet.
type Config struct {
	// Mode is how the interval of an entity is chosen. In the mode "tiers" it depends on the number
	// of reads, in the mode "adaptive" on the changes and reads of the entity. In the mode "off" the
	// facet is not prefetched.
	Mode  Mode    `yaml:"mode"`
	Tiers TierSet `yaml:"tiers"`
	// MinInterval is the shortest interval of an entity in the adaptive mode, at least 1m.
	MinInterval time.Duration `yaml:"minInterval"`
	// MaxInterval is the longest interval of an entity in the adaptive mode, at most 2160h.
	MaxInterval time.Duration `yaml:"maxInterval"`
	// NotBefore is the time of day from which the upstream has the content of that day, as in "02:00".
	// From midnight to that time no entity of the facet becomes due.
	NotBefore Clock `yaml:"notBefore,omitempty"`
	// TimeZone is the time zone of notBefore, such as Asia/Seoul; empty means UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
	// Jitter is the maximum of the pseudo-random delay that is added to the regular due time of an
	// entity. The default is one minute, or an eighth of tiers.hot.every if that is shorter.
	Jitter   time.Duration `yaml:"jitter"`
	Cooldown Cooldown      `yaml:"cooldown"`
	// Active selects the entities that are prefetched; empty means all.
	Active Active `yaml:"active,omitempty"`
	// Triggers maps the name of another facet to a trigger: a change of this facet then refreshes that
	// facet.
	Triggers map[string]Trigger `yaml:"triggers,omitempty"`
	// Backoff is added to the due time after the first failure of an entity. It doubles with each
	// further failure. The default is ten minutes, or tiers.cold.every if that is shorter.
	Backoff time.Duration `yaml:"backoff"`
}

// TierSet has the intervals of the three tiers. If the file sets only some of them, the defaults of
// the others are adjusted, so that no tier is refreshed less often than a colder one.
type TierSet struct {
	// Hot is the tier of the entities that are read most.
	Hot Tier `yaml:"hot"`
	// Warm is the tier between hot and cold.
	Warm Tier `yaml:"warm"`
	// Cold is the tier of all other entities.
	Cold Tier `yaml:"cold"`
}

// Tier is the interval of a tier, and the number of reads from which an entity belongs to it.
type Tier struct {
	// Every is the interval between two refreshes, from 1m to 2160h.
	Every time.Duration `yaml:"every"`
	// Reads is the minimum number of reads a day with which an entity enters the tier. The tier
	// cold has no minimum.
	Reads float64 `yaml:"reads,omitempty"`
}

// Cooldown is the minimum time between a refresh of an entity and its next prefetch.
type Cooldown struct {
	// Automatic is the minimum time after a prefetch, trigger, retry or replay. The default is ten
	// minutes, or the shortest interval of the facet if that is shorter.
	Automatic time.Duration `yaml:"automatic"`
	// Manual is the minimum time after a refresh by a reader or an operator. The default is 30 minutes,
	// or tiers.cold.every if that is shorter.
	Manual time.Duration `yaml:"manual"`
}

// Trigger configures how a change of one facet refreshes another facet of the same key.
type Trigger struct {
	// Backoff is the minimum time between two refreshes of the other facet. A change within this time
	// after a refresh triggers no further refresh.
	Backoff time.Duration `yaml:"backoff"`
	// Quiet is how long a trigger waits after the last change of the facet before the refresh, from 1s
	// to 24h; 0s means that it does not wait. A change is noticed only when the facet is checked. So a
	// time that is shorter than the interval of the checks has no effect.
	Quiet time.Duration `yaml:"quiet,omitempty"`
	// MaxDelay is the maximum time from the first change to the refresh. Without it, a facet that
	// changes again and again would delay the refresh forever. 0s means ten times quiet.
	MaxDelay time.Duration `yaml:"maxDelay,omitempty"`
}

// The minimum and maximum of the settings Quiet and MaxDelay.
const (
	minQuiet, maxQuiet = time.Second, 24 * time.Hour
	maxDelay           = 7 * 24 * time.Hour
	delayQuiets        = 10 // the default of MaxDelay is Quiet, multiplied by this number
)

// Delays returns Quiet and MaxDelay. If MaxDelay is 0, it returns the default for it.
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

// Clock is a time of day in minutes after midnight. Its text form is "02:00".
type Clock int

// UnmarshalText parses "HH:MM".
func (c *Clock) UnmarshalText(text []byte) error {
	t, err := time.Parse("15:04", string(text))
	if err != nil {
		return fmt.Errorf("%q must be a time of day as in 02:00", text)
	}
	*c = Clock(t.Hour()*60 + t.Minute())
	return nil
}

// MarshalText formats c as "HH:MM".
func (c Clock) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%02d:%02d", int(c)/60, int(c)%60), nil
}

// DefaultConfig returns the default configuration of a facet. An entity enters a tier at about one
// read in each interval of that tier.
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

// unset marks a duration that the configuration file does not set. No valid duration is negative.
const unset = time.Duration(math.MinInt64)

// UnmarshalYAML decodes the configuration of a facet. Each omitted setting gets its default. If the
// default contradicts an interval in the file, the setting gets the closest value that fits. If the
// section does not set the mode, it is "tiers".
func (c *Config) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Config
	p := plain(DefaultConfig())
	p.Mode = Tiers
	p.Tiers.Hot.Every, p.Tiers.Warm.Every, p.Tiers.Cold.Every, p.MinInterval, p.MaxInterval = unset, unset, unset, unset, unset
	p.Jitter, p.Cooldown.Automatic, p.Cooldown.Manual, p.Backoff = unset, unset, unset, unset
	err := unmarshal(&p)
	*c = Config(p)
	c.deriveDefaults()
	return err
}

// deriveDefaults replaces each unset duration by its default, or by the closest value that the set
// durations allow.
func (c *Config) deriveDefaults() {
	standard := DefaultConfig()
	hot, warm, cold := &c.Tiers.Hot.Every, &c.Tiers.Warm.Every, &c.Tiers.Cold.Every
	setDefault(hot, atMost(standard.Tiers.Hot.Every, *warm, *cold))
	setDefault(warm, max(*hot, atMost(standard.Tiers.Warm.Every, *cold)))
	setDefault(cold, max(*warm, standard.Tiers.Cold.Every))
	setDefault(&c.MinInterval, atMost(standard.MinInterval, c.MaxInterval))
	setDefault(&c.MaxInterval, max(standard.MaxInterval, c.MinInterval))
	shortest := *hot
	if c.Mode == Adaptive {
		shortest = min(shortest, c.MinInterval)
	}
	setDefault(&c.Jitter, min(standard.Jitter, *hot/8))
	setDefault(&c.Cooldown.Automatic, min(standard.Cooldown.Automatic, shortest))
	setDefault(&c.Cooldown.Manual, min(standard.Cooldown.Manual, *cold))
	setDefault(&c.Backoff, min(standard.Backoff, *cold))
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == unset {
		*d = value
	}
}

// atMost returns the shortest of these durations: `standard`, and the limits that are set.
func atMost(standard time.Duration, limits ...time.Duration) time.Duration {
	for _, limit := range limits {
		if limit != unset {
			standard = min(standard, limit)
		}
	}
	return standard
}

const (
	minInterval = time.Minute
	maxInterval = 90 * 24 * time.Hour
)

// Check returns one error that joins all mistakes in the configuration.
func (c Config) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]Mode{Off, Tiers, Adaptive}, c.Mode) {
		fail("mode: %q must be off, tiers or adaptive", c.Mode)
	}
	hot, warm, cold := c.Tiers.Hot, c.Tiers.Warm, c.Tiers.Cold
	rise := minInterval <= hot.Every && hot.Every <= warm.Every && warm.Every <= cold.Every && cold.Every <= maxInterval
	if !rise { // the next checks are only useful if the intervals rise from hot to cold
		fail("tiers: hot.every, warm.every and cold.every are %v, %v and %v; they must rise, from %v to %v", hot.Every, warm.Every, cold.Every, minInterval, maxInterval)
	}
	if !(warm.Reads > 0 && hot.Reads >= warm.Reads && hot.Reads <= 1e9) { // written with "not", so that the check also rejects NaN
		fail("tiers: hot.reads and warm.reads are %v and %v a day; warm's must be above 0, and hot's at least as many", hot.Reads, warm.Reads)
	}
	if cold.Reads != 0 {
		fail("tiers.cold.reads: %v must be left out; the tier cold has no minimum of reads", cold.Reads)
	}
	span := minInterval <= c.MinInterval && c.MinInterval <= c.MaxInterval && c.MaxInterval <= maxInterval
	if !span {
		name := "minInterval"
		// If minInterval has its default or maxInterval is too long, the mistake is in maxInterval.
		if c.MinInterval == DefaultConfig().MinInterval || c.MaxInterval > maxInterval {
			name = "maxInterval"
		}
		fail("%s: minInterval and maxInterval are %v and %v; they must rise, from %v to %v", name, c.MinInterval, c.MaxInterval, minInterval, maxInterval)
	}
	if c.NotBefore < 0 || c.NotBefore > 12*60 {
		fail("notBefore: %s must be a time of day up to 12:00", clockText(c.NotBefore))
	}
	if _, err := time.LoadLocation(c.TimeZone); err != nil {
		fail("timeZone: %q is unknown; use a name such as Asia/Seoul", c.TimeZone)
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

// CheckTriggers returns an error if a trigger names an unknown facet, or if triggers form a cycle.
// A facet in a cycle would be refreshed forever although nothing changes.
func CheckTriggers(facets map[string]Config) error {
	var errs []error
	for _, from := range slices.Sorted(maps.Keys(facets)) {
		reached := map[string]bool{}
		next := slices.Sorted(maps.Keys(facets[from].Triggers))
		for _, to := range next {
			if _, known := facets[to]; !known {
				errs = append(errs, fmt.Errorf("facets.%s.triggers.%s: there is no facet %q; the facets are: %s", from, to, to, strings.Join(slices.Sorted(maps.Keys(facets)), ", ")))
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
			errs = append(errs, fmt.Errorf("facets.%s.triggers: the triggers form a cycle; remove one of them", from))
		}
	}
	return errors.Join(errs...)
}
