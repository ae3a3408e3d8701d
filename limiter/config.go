package limiter

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is the quota of one source. The yaml tags are its form in the
// configuration file.
type Config struct {
	// Jitter is J: by how much the network may spread two calls.
	Jitter   time.Duration `yaml:"jitter"`
	Policies []Policy      `yaml:"policies"`
	// LowRateCaps bound LOW by the hour of the day, in the time zone of the day
	// policy, or UTC. The first that holds the hour counts.
	LowRateCaps []RateCap `yaml:"lowRateCaps,omitempty"`
	// Backoff is the first pause after the upstream refused a call without saying
	// for how long; it doubles with each repeat up to a minute. 0: the shortest
	// window.
	Backoff time.Duration `yaml:"backoff,omitempty"`

	// What follows is not the quota's to say. Halts are what may be halted alone, by
	// name, with the scope of what the halt covers.
	Breakers map[string]string `yaml:"-"`
	// Lease is how long a call may be under way, from its permit on.
	Lease time.Duration `yaml:"-"`
	// Credentials and Endpoints are how many there are: what LOW may call is reckoned by them.
	Credentials, Endpoints int `yaml:"-"`
	// Costs are the estimated costs of the documents, by unit.
	Costs map[string]CostRange `yaml:"-"`
	// CostReported are the names of the policies for which answers announce what a call has cost.
	CostReported []string `yaml:"-"`
}

// CostRange is the units of the cheapest and of the dearest document.
type CostRange struct{ Min, Max int }

// Policy is one limit of a source: so many calls in any window of a length, or
// in a calendar day; or, with a scope, a unit or costs, what the members below say.
type Policy struct {
	Name   string `yaml:"name"`
	Limit  int    `yaml:"limit,omitempty"`
	Window Window `yaml:"window,omitempty"`
	// TimeZone is where a calendar day begins and ends; empty: UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
	// Target is how many calls of a window are used; 0: all that the bound
	// allows. HighReserve of them are kept for HIGH, LowReserve for LOW.
	Target      int     `yaml:"target,omitempty"`
	HighReserve Reserve `yaml:"highReserve,omitempty"`
	LowReserve  int     `yaml:"lowReserve,omitempty"`

	// Scope has the policy hold for each value of a template by itself, such as
	// {credential}/{endpoint}; empty: for the source as a whole. Known are credential,
	// endpoint, facet, method, key, resource and the facet's own placeholders.
	Scope string `yaml:"scope,omitempty"`
	// Match says which calls are charged.
	Match Match `yaml:"match,omitempty"`
	// Unit is what is counted, if not calls; Costs are the units of a call by endpoint,
	// facet or method, before what its document says of the unit.
	Unit  string         `yaml:"unit,omitempty"`
	Costs map[string]int `yaml:"costs,omitempty"`
	// Answers of the statuses in Free cost nothing; if there is Only, those of others
	// cost nothing (an error budget).
	FreeStatuses    []int `yaml:"freeStatuses,omitempty"`
	CountedStatuses []int `yaml:"countedStatuses,omitempty"`
	// Restore makes a bucket of it, that holds Limit and is filled at that rate.
	Restore Rate `yaml:"restore,omitempty"`
	// Reported: what is left is what the answers tell (Source.Announced); Limit and Window
	// hold where they tell nothing. Paced: LOW spreads what is left over the window.
	Reported bool `yaml:"reported,omitempty"`
	Pace     bool `yaml:"pace,omitempty"`
	// Lease is for how long a place in flight is kept for a call of which nothing is heard;
	// 0: as long as a call may take.
	Lease time.Duration `yaml:"lease,omitempty"`
	// MinInterval has calls be apart, instead of a limit.
	MinInterval *MinInterval `yaml:"minInterval,omitempty"`
}

// Window is the length of a window, or Day, or InFlight.
type Window time.Duration

// Day is the window of a calendar day, which is not always 24 hours long.
const Day Window = -1

// UnmarshalYAML reads a duration or the word day.
func (w *Window) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	switch text {
	case "day":
		*w = Day
		return nil
	case "in-flight":
		*w = InFlight
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q must be day, in-flight, or a duration as in 1s or 1m", text)
	}
	*w = Window(d)
	return nil
}

// MarshalYAML writes it as it is read.
func (w Window) MarshalYAML() (any, error) { return w.String(), nil }

func (w Window) String() string {
	switch w {
	case Day:
		return "day"
	case InFlight:
		return "in-flight"
	}
	return time.Duration(w).String()
}

// Rate is a number of calls a second. Its text form is 25/s, 90/m or 5000/h.
type Rate float64

var rateUnits = map[string]float64{"s": 1, "m": 60, "h": 3600}

// ParseRate reads the text form.
func ParseRate(text string) (Rate, error) {
	number, unit, found := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(number, 64)
	if seconds := rateUnits[unit]; found && err == nil && n >= 0 && n <= 1e6 && seconds > 0 {
		return Rate(n / seconds), nil
	}
	return 0, fmt.Errorf("%q must be a rate as in 25/s, 90/m or 5000/h", text)
}

func (r Rate) String() string { return strconv.FormatFloat(float64(r), 'g', -1, 64) + "/s" }

// MarshalText writes it as it is read.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the text form.
func (r *Rate) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRate(string(text))
	return err
}

// Reserve is a part of a window's calls: so many of them, or a rate.
type Reserve struct {
	Calls int
	Rate  Rate
}

// ParseReserve reads a number of calls, or a rate.
func ParseReserve(text string) (Reserve, error) {
	if n, err := strconv.Atoi(text); err == nil && n >= 0 {
		return Reserve{Calls: n}, nil
	}
	r, err := ParseRate(text)
	if err != nil {
		return Reserve{}, fmt.Errorf("%q must be a number of calls a window, or a rate as in 25/s", text)
	}
	return Reserve{Rate: r}, nil
}

func (r Reserve) String() string {
	if r.Rate > 0 {
		return r.Rate.String()
	}
	return strconv.Itoa(r.Calls)
}

// IsZero reports whether nothing is reserved.
func (r Reserve) IsZero() bool { return r == Reserve{} }

// in returns the calls of a window.
func (r Reserve) in(window time.Duration) int {
	return r.Calls + int(float64(r.Rate)*window.Seconds()+0.5)
}

// perSecond returns the rate that the reserve of a window comes to.
func (r Reserve) perSecond(window time.Duration) float64 {
	return float64(r.Rate) + float64(r.Calls)/window.Seconds()
}

// UnmarshalYAML reads a number of calls, or a rate.
func (r *Reserve) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	read, err := ParseReserve(text)
	*r = read
	return err
}

// MarshalYAML writes it as it is read.
func (r Reserve) MarshalYAML() (any, error) {
	if r.Rate > 0 {
		return r.Rate.String(), nil
	}
	return r.Calls, nil
}

// MarshalJSON writes a number, or a rate as text.
func (r Reserve) MarshalJSON() ([]byte, error) {
	v, _ := r.MarshalYAML()
	return json.Marshal(v)
}

// UnmarshalJSON reads a number, or text.
func (r *Reserve) UnmarshalJSON(text []byte) (err error) {
	*r, err = ParseReserve(strings.Trim(string(text), `"`))
	return err
}

// RateCap is the most that LOW may use from one full hour of the day to another;
// From and To both 0: at any hour.
type RateCap struct {
	From int  `json:"from,omitempty" yaml:"from,omitempty"`
	To   int  `json:"to,omitempty"   yaml:"to,omitempty"`
	Rate Rate `json:"rate"           yaml:"rate"`
}

// UnmarshalYAML reads a rate cap. One without a rate gets none that there is, for
// CheckRate caps to name: 0 would keep LOW from calling at all.
func (c *RateCap) UnmarshalYAML(unmarshal func(any) error) error {
	var given struct {
		From int   `yaml:"from"`
		To   int   `yaml:"to"`
		Rate *Rate `yaml:"rate"`
	}
	err := unmarshal(&given)
	*c = RateCap{From: given.From, To: given.To, Rate: Rate(math.NaN())}
	set(&c.Rate, given.Rate)
	return err
}

// Applies reports whether the rate cap counts at that hour; 22 to 3 goes over
// midnight.
func (c RateCap) Applies(hour int) bool {
	switch {
	case c.From == c.To:
		return true
	case c.From < c.To:
		return c.From <= hour && hour < c.To
	}
	return hour >= c.From || hour < c.To
}

// CheckRateCaps returns the first mistake in a list that somebody writes, without the
// name of the list.
func CheckRateCaps(all []RateCap) error {
	if err := checkEachRateCap(all); err != nil {
		return err
	}
	var held [24]bool
	for i, c := range all {
		holds := false
		for hour := range held {
			if !held[hour] && c.Applies(hour) {
				held[hour], holds = true, true
			}
		}
		if !holds {
			return fmt.Errorf("[%d] never holds, since those before it hold all its hours; leave it out, or write it before them", i)
		}
	}
	return nil
}

// checkEachRateCap leaves out what does no harm: an override that was stored must hold later too.
func checkEachRateCap(all []RateCap) error {
	for i, c := range all {
		if c.From < 0 || c.From > 23 || c.To < 0 || c.To > 24 {
			return fmt.Errorf("[%d]: hours are 0 to 24, not %d to %d", i, c.From, c.To)
		}
		if math.IsNaN(float64(c.Rate)) {
			return fmt.Errorf("[%d] has no rate; write one as in {from: 19, to: 23, rate: 150/s}", i)
		}
		if c.Rate != 0 && c.Rate < 1e-4 {
			return fmt.Errorf("[%d]: rate: %v must be 0, or at least one call in three hours", i, c.Rate)
		}
	}
	return nil
}

// DefaultConfig returns the settings of a quota that says nothing else.
func DefaultConfig() Config { return Config{Jitter: 10 * time.Millisecond} }

// Override is what was changed of a quota while it runs. What is nil, or not
// there, is as it is configured. The json tags are its form in the settings
// table and the admin API.
type Override struct {
	// Stopped: no call is made until it is resumed, and nothing is lost meanwhile.
	Stopped     bool                      `json:"stopped,omitempty"`
	Policies    map[string]PolicyOverride `json:"policies,omitempty"`
	LowRateCaps *[]RateCap                `json:"lowRateCaps,omitempty"`
}

// PolicyOverride changes one policy.
type PolicyOverride struct {
	Limit       *int     `json:"limit,omitempty"`
	Target      *int     `json:"target,omitempty"`
	HighReserve *Reserve `json:"highReserve,omitempty"`
	LowReserve  *int     `json:"lowReserve,omitempty"`
}

// With returns the quota with what was changed, or an error that names a policy
// that there is none of. Whether it holds is for NewQuota to say.
func (c Config) With(o Override) (Config, error) {
	c.Policies = slices.Clone(c.Policies)
	if o.LowRateCaps != nil {
		c.LowRateCaps = *o.LowRateCaps
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.Policies)) {
		i := slices.IndexFunc(c.Policies, func(p Policy) bool { return p.Name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("there is no policy %q; the quota has %s", name, c.names()))
			continue
		}
		p, change := &c.Policies[i], o.Policies[name]
		set(&p.Limit, change.Limit)
		set(&p.Target, change.Target)
		set(&p.HighReserve, change.HighReserve)
		set(&p.LowReserve, change.LowReserve)
	}
	return c, errors.Join(errs...)
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

func (c Config) names() string {
	var names []string
	for _, p := range c.Policies {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
