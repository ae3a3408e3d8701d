package limiter

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
)

// Config is the quota of one source, as the configuration file describes it.
type Config struct {
	// Jitter is the largest expected difference of the network delays of two calls, at most 1s. A
	// larger value lowers the rate of calls. (The proof in limiter/doc.go explains why.)
	Jitter time.Duration `yaml:"jitter"`
	// Policies are the limits of the upstream. A call needs room in every policy that counts it. At
	// least one policy needs a window that is shorter than a day.
	Policies []Policy `yaml:"policies"`
	// Backoff is the first pause after a refusal without Retry-After, at most 1m. The pause doubles
	// with each further refusal, up to one minute. 0s means the length of the shortest window, but at
	// least one second.
	Backoff time.Duration `yaml:"backoff,omitempty"`

	// The caller derives the fields below from the rest of the source's configuration.
	//
	// Breakers maps the name of each scope that has its own circuit breaker to the scope's
	// template, for example "endpoint" to "{credential}/{endpoint}".
	Breakers map[string]string `yaml:"-"`
	// Lease is the longest time that a call can be in flight, counted from its permit.
	Lease time.Duration `yaml:"-"`
	// Credentials, Endpoints and Hosts are the numbers of credentials, endpoints and hosts of the
	// source. The estimates of LOW's rate multiply the rate of a scoped policy by them.
	Credentials, Endpoints, Hosts int `yaml:"-"`
	// Costs holds the estimated cost range of the documents, by unit.
	Costs map[string]CostRange `yaml:"-"`
	// CostReported lists the policies for which responses report the actual cost of a call.
	CostReported []string `yaml:"-"`
}

// CostRange is the estimated cost of the cheapest and of the most expensive document, in units.
type CostRange struct{ Min, Max int }

// Policy is one limit of a source: a number of calls per sliding window or calendar day. A
// policy with a scope, a unit, costs or another kind of limit is kept in buckets, one for each
// value of its scope.
type Policy struct {
	// Name identifies the policy in metrics, commands and the console. It must not contain dots, commas,
	// equals signs or spaces.
	Name string `yaml:"name"`
	// Limit is the number of calls, or of units, that the upstream allows in a window.
	Limit int `yaml:"limit,omitempty"`
	// Window is the length of the sliding window, as in 1s or 1m. The value "day" means a calendar
	// day, and "in-flight" a limit of the calls in flight at once.
	Window Window `yaml:"window,omitempty"`
	// TimeZone is the time zone of the calendar day, such as Asia/Seoul; empty means UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
	// Target is the maximum number of calls that freshet makes per window. Without it, freshet makes as
	// many as the limit safely allows.
	Target int `yaml:"target,omitempty"`
	// HighReserve is the part of the window that only the lane HIGH can use, as a number of calls in a
	// window (100) or as a rate (25/s).
	HighReserve Reserve `yaml:"highReserve,omitempty"`
	// LowReserve is the number of calls in a window that only the lane LOW can use. A policy with a
	// scope cannot have this setting.
	LowReserve int `yaml:"lowReserve,omitempty"`

	// Scope is a template such as {credential}/{endpoint}; each of its values has its own
	// bucket. Empty means one bucket for the source. The placeholders are credential, endpoint, facet, host,
	// method, key, resource and the facet's own parameters.
	Scope string `yaml:"scope,omitempty"`
	// Match selects the calls that the policy counts; empty means all calls.
	Match Match `yaml:"match,omitempty"`
	// Unit is the name of the unit that is counted, such as points; empty means calls.
	Unit string `yaml:"unit,omitempty"`
	// Costs are the units that one call takes, by endpoint (facet/document), facet or method. They take
	// precedence over the cost of the call's document.
	Costs map[string]int `yaml:"costs,omitempty"`
	// FreeStatuses are the HTTP statuses whose responses cost nothing, such as 304.
	FreeStatuses []int `yaml:"freeStatuses,omitempty"`
	// CountedStatuses are the only HTTP statuses whose responses cost anything (an error budget).
	// Empty means that all responses count.
	CountedStatuses []int `yaml:"countedStatuses,omitempty"`
	// Restore turns the policy into a leaky bucket that drains at this rate, as in 2/s. The size of
	// the bucket is Limit.
	Restore Rate `yaml:"restore,omitempty"`
	// Reported is true if responses report the remaining budget. The source's setting "announced"
	// lists where. Limit and Window of the policy apply while nothing is reported.
	Reported bool `yaml:"reported,omitempty"`
	// Pace spreads the calls of LOW evenly over the window of a reported limit.
	Pace bool `yaml:"pace,omitempty"`
	// Lease is how long a slot in flight is held for a call whose end was never reported; 0s means 5 s
	// longer than the source's timeout.
	Lease time.Duration `yaml:"lease,omitempty"`
	// MinInterval replaces the limit by a minimum time between two calls.
	MinInterval *MinInterval `yaml:"minInterval,omitempty"`
}

// Window is the length of a window, or one of the constants Day and InFlight.
type Window time.Duration

// Day is the window of a calendar day. A day can have 23 or 25 hours.
const Day Window = -1

// UnmarshalYAML reads a duration, or the word day or in-flight.
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

// MarshalYAML writes the form that UnmarshalYAML reads.
func (w Window) MarshalYAML() (any, error) { return w.String(), nil }

func (w Window) String() string {
	switch w {
	case Day:
		return "day"
	case InFlight:
		return "in-flight"
	}
	return schemas.FormatDuration(time.Duration(w))
}

// Rate is a number of calls per second. Its text form is 25/s, 90/m or 5000/h.
type Rate float64

var rateUnits = map[string]float64{"s": 1, "m": 60, "h": 3600}

// ParseRate parses the text form of a Rate.
func ParseRate(text string) (Rate, error) {
	number, unit, found := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(number, 64)
	if seconds := rateUnits[unit]; found && err == nil && n >= 0 && n <= 1e6 && seconds > 0 {
		return Rate(n / seconds), nil
	}
	return 0, fmt.Errorf("%q must be a rate as in 25/s, 90/m or 5000/h", text)
}

func (r Rate) String() string { return strconv.FormatFloat(float64(r), 'g', -1, 64) + "/s" }

// MarshalText writes the form that ParseRate reads, in calls per second.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses the text form of a Rate.
func (r *Rate) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRate(string(text))
	return err
}

// Reserve is a part of a window that is kept for one lane: a number of calls, or a rate.
type Reserve struct {
	Calls int
	Rate  Rate
}

// ParseReserve parses a number of calls or a rate.
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

// in returns the reserve of one window, in calls.
func (r Reserve) in(window time.Duration) int {
	return r.Calls + int(float64(r.Rate)*window.Seconds()+0.5)
}

// perSecond returns the reserve as calls per second.
func (r Reserve) perSecond(window time.Duration) float64 {
	return float64(r.Rate) + float64(r.Calls)/window.Seconds()
}

// UnmarshalYAML reads a number of calls or a rate.
func (r *Reserve) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	read, err := ParseReserve(text)
	*r = read
	return err
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (r Reserve) MarshalYAML() (any, error) {
	if r.Rate > 0 {
		return r.Rate.String(), nil
	}
	return r.Calls, nil
}

// MarshalJSON writes a number of calls, or a rate as a string.
func (r Reserve) MarshalJSON() ([]byte, error) {
	v, _ := r.MarshalYAML()
	return json.Marshal(v)
}

// UnmarshalJSON reads a number or a string.
func (r *Reserve) UnmarshalJSON(text []byte) (err error) {
	*r, err = ParseReserve(strings.Trim(string(text), `"`))
	return err
}

// DefaultConfig returns a Config with the default jitter and no policies.
func DefaultConfig() Config { return Config{Jitter: 10 * time.Millisecond} }

// Override contains the changes that an operator made while freshet runs. Fields that are nil or
// missing keep their configured value. The json tags define the form in the settings table and in
// the admin API.
type Override struct {
	// Stopped is the emergency stop: no call is sent until it is cleared. Waiting calls keep
	// waiting.
	Stopped  bool                      `json:"stopped,omitempty"`
	Policies map[string]PolicyOverride `json:"policies,omitempty"`
}

// PolicyOverride changes one policy. A nil field keeps its configured value.
type PolicyOverride struct {
	Limit       *int     `json:"limit,omitempty"`
	Target      *int     `json:"target,omitempty"`
	HighReserve *Reserve `json:"highReserve,omitempty"`
	LowReserve  *int     `json:"lowReserve,omitempty"`
}

// With returns the configuration with the override applied, or an error that names an unknown
// policy. It does not validate the result; NewQuota does.
func (c Config) With(o Override) (Config, error) {
	c.Policies = slices.Clone(c.Policies)
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
