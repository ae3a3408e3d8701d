package limiter

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// InFlight is the window of a policy that limits the number of calls in flight.
const InFlight Window = -2

// maxLogEntries is the maximum number of entries of a sliding-window log. A window with more
// units rounds the times of its slots up to a multiple of 1/200 of window + permitLife + jitter.
const maxLogEntries = 200

// Requests is the default unit of a policy: each call costs one.
const Requests = "requests"

// MinInterval is the time between two calls. Each interval is a random time from Min to Max.
type MinInterval struct {
	// Min is the shortest time between two calls.
	Min time.Duration `yaml:"min"`
	// Max is the longest time between two calls, at most 1h.
	Max time.Duration `yaml:"max"`
}

// Match selects the calls that a policy counts. A policy counts a call if each non-empty list
// contains it.
type Match struct {
	// Methods are the HTTP methods of the counted calls.
	Methods []string `yaml:"methods,omitempty" enum:"GET,POST"`
	// Endpoints are the documents of the counted calls, as facet/document, or facet for all documents of
	// a facet.
	Endpoints []string `yaml:"endpoints,omitempty"`
}

func (m Match) fits(c Call) bool {
	return (len(m.Methods) == 0 || slices.Contains(m.Methods, c.Method)) &&
		(len(m.Endpoints) == 0 || slices.Contains(m.Endpoints, c.Endpoint) || slices.Contains(m.Endpoints, c.facet()))
}

// Call describes an upstream call that needs a permit.
type Call struct {
	Endpoint string // document that the call fetches, as facet/document
	Host     string // host of the upstream to which the call is sent
	Method   string
	Key      string
	Resource string // the upstream's name for the budget that is charged; empty means unknown
	// Values are the facet's own parameters, for placeholders in scopes.
	Values map[string]string
	// Costs are the estimated costs by unit. A missing unit costs 1.
	Costs map[string]int
	// Client identifies the API client that the call is made for. Clients take turns; see fair.
	Client string
	// Credentials are the names of the credentials that the call can use. The limiter chooses
	// one. Empty means that the source has no named credentials.
	Credentials []string
}

func (c Call) facet() string {
	facet, _, _ := strings.Cut(c.Endpoint, "/")
	return facet
}

// value returns the value of a placeholder of a scope.
func (c Call) value(name, credential string) string {
	switch name {
	case "credential":
		return credential
	case "endpoint":
		return c.Endpoint
	case "facet":
		return c.facet()
	case "host":
		return c.Host
	case "method":
		return c.Method
	case "key":
		return c.Key
	case "resource":
		if c.Resource == "" {
			return "of " + c.Endpoint // until a response names the budget, the endpoint has a budget of its own
		}
		return c.Resource
	}
	return c.Values[name]
}

// scoped reports whether the policy is kept in buckets, one for each value of its scope. Other
// policies apply to every call of the source.
func (p Policy) scoped() bool {
	return p.Scope != "" || p.Unit != "" || p.Restore > 0 || p.MinInterval != nil || p.Reported || p.Window == InFlight ||
		len(p.Match.Methods)+len(p.Match.Endpoints)+len(p.Costs)+len(p.FreeStatuses)+len(p.CountedStatuses) > 0
}

// scopedPolicy is a scoped policy, or a scope with its own circuit breaker, in the form that
// the script takes.
type scopedPolicy struct {
	policy Policy // for a breaker only its name and scope are set
	scope  template
	terms  policyTerms
	// cheapest is the estimated cost of the cheapest call, in units.
	cheapest int
}

func (s scopedPolicy) kind() kind { return s.terms.head().Kind }

// newScopedPolicy validates and encodes a scoped policy. The error names the setting and a
// value that would be valid.
func newScopedPolicy(p Policy, config Config) (scopedPolicy, error) {
	s := scopedPolicy{policy: p}
	s.cheapest, _ = p.costRange(config)
	jitter, lease := config.Jitter, config.Lease
	var err error
	if s.scope, err = parseScope(p.Scope); err != nil {
		return s, fmt.Errorf("scope: %w", err)
	}
	if err := p.checkScoped(); err != nil {
		return s, err
	}
	reach := time.Duration(p.Window) + permitLife + jitter
	budget := p.budget()
	kept := int64(p.HighReserve.in(time.Duration(max(0, p.Window))))
	switch {
	case p.MinInterval != nil:
		s.terms = minIntervalTerms{
			policyHead: newPolicyHead(minIntervalKind, p.Name),
			MinGap:     (p.MinInterval.Min + permitLife + jitter).Microseconds(),
			MaxGap:     (max(p.MinInterval.Min, p.MinInterval.Max) + permitLife + jitter).Microseconds(),
		}
	case p.Window == InFlight:
		s.terms = concurrencyTerms{newPolicyHead(concurrencyKind, p.Name), int64(budget), int64(budget) - kept, max(p.Lease, lease).Microseconds()}
		if lease > 0 && p.Lease > 0 && p.Lease < lease {
			return s, fmt.Errorf("lease: %v is shorter than the longest call (%v), so a slot could be granted again while its call is in flight", p.Lease, lease)
		}
	case p.Reported && p.Restore == 0:
		s.terms = reportedTerms{
			policyHead: newPolicyHead(reportedKind, p.Name),
			Units:      int64(budget),
			Window:     time.Duration(p.Window).Microseconds(),
			ForHigh:    kept,
			Paced:      boolNumber(p.Pace),
			Lease:      max(lease, time.Second).Microseconds(),
		}
	case p.Restore > 0:
		// A call can reach the upstream up to permitLife + jitter after its slot. So the upstream
		// can have restored fewer units than Redis computes from the slots. The bucket is smaller
		// by this difference.
		early := int(math.Ceil(float64(p.Restore)*(permitLife+jitter).Seconds())) + 1
		if early > budget/2 {
			return s, fmt.Errorf("limit: %d units are restored between a permit and the arrival of its call, more than half of the usable %d; raise limit or lower restore", early, budget)
		}
		s.terms = leakyBucketTerms{
			policyHead: newPolicyHead(leakyBucketKind, p.Name),
			UnitNs:     int64(math.Ceil(1e9 / float64(p.Restore))),
			Size:       int64(budget - early),
			ForHigh:    kept,
			Reported:   boolNumber(p.Reported),
		}
	case len(p.CountedStatuses) > 0:
		// In an error budget, half of the units are the burst, and half are restored during the window.
		// The units of successful calls are refunded soon after their start.
		s.terms = leakyBucketTerms{
			policyHead: newPolicyHead(leakyBucketKind, p.Name),
			UnitNs:     reach.Nanoseconds()/int64(budget-budget/2) + 1,
			Size:       int64(budget / 2),
			ForHigh:    kept,
			KeepFor:    reach.Microseconds(),
		}
	default:
		s.terms = p.unitLogTerms(reach, config)
	}
	return s, p.checkDearest(config, budget, kept)
}

// unitLogTerms returns the numbers of a sliding-window log of units.
//
// Two kinds of windows are not paced, so all their units can be used at one moment. The first kind
// are windows of few calls. The second kind are windows for which responses refund units: a pace that
// is computed from estimates would waste the refunded units. All other windows are paced at the
// limit's rate. The pace reserves up to 2 % of the limit for the burst that the most expensive call
// needs.
func (p Policy) unitLogTerms(reach time.Duration, config Config) unitLogTerms {
	budget := p.budget()
	t := unitLogTerms{
		policyHead: newPolicyHead(unitLogKind, p.Name),
		Reach:      reach.Microseconds() + 1,
		Units:      int64(budget),
		LowUnits:   int64(budget - p.HighReserve.in(time.Duration(p.Window))),
		Grain:      1,
	}
	if budget > maxLogEntries {
		t.Grain = reach.Microseconds()/maxLogEntries + 1
	}
	_, dearest := p.costRange(config)
	fewCalls := budget <= maxLogEntries && p.Unit == "" && dearest == 1
	if fewCalls || len(p.FreeStatuses) > 0 || slices.Contains(config.CostReported, p.Name) {
		t.Burst, t.AtOnce = 1, int64(budget)
		return t
	}
	burst := max(1, budget/100, min(dearest, budget/50))
	t.PaceNs, t.Burst = reach.Nanoseconds()/int64(budget-burst+1)+1, int64(burst)
	t.HighBurst = min(t.Units-t.LowUnits, t.Burst/2)
	// Rounded times can give up to budget/maxLogEntries units slots at the same time.
	t.AtOnce = int64(min(budget, burst+dearest+budget/maxLogEntries))
	return t
}

// checkDearest returns an error if the policy can never admit the most expensive call.
func (p Policy) checkDearest(config Config, budget int, kept int64) error {
	_, dearest := p.costRange(config)
	switch {
	case p.MinInterval != nil || p.Reported || p.Window == InFlight:
		return nil
	case dearest > budget:
		return fmt.Errorf("limit: the most expensive call costs %d units, but only %d can be used; raise limit or target, or lower the cost", dearest, budget)
	case int64(dearest) > int64(budget)-kept:
		return fmt.Errorf("highReserve: LOW can use %d of %d units, but the most expensive call costs %d; lower highReserve", int64(budget)-kept, budget, dearest)
	}
	return nil
}

// budget returns the maximum number of units that freshet uses per window: the target if there is
// one, and the limit if not.
func (p Policy) budget() int {
	if p.Target > 0 {
		return p.Target
	}
	return p.Limit
}

// costRange returns the estimated cost of the cheapest and the most expensive call.
func (p Policy) costRange(config Config) (cheapest, dearest int) {
	documents, known := config.Costs[p.Unit]
	if !known {
		documents = CostRange{1, 1}
	}
	cheapest, dearest = documents.Min, documents.Max
	for _, n := range p.Costs {
		cheapest, dearest = min(cheapest, n), max(dearest, n)
	}
	return max(1, cheapest), max(1, dearest)
}

// cost returns the estimated cost of a call.
func (p Policy) cost(c Call) int {
	for _, of := range []string{c.Endpoint, c.facet(), c.Method} {
		if n, known := p.Costs[of]; known {
			return n
		}
	}
	if n, known := c.Costs[p.Unit]; known {
		return n
	}
	return 1
}

func (p Policy) checkScoped() error {
	window := time.Duration(p.Window)
	kinds := 0
	for _, is := range []bool{p.MinInterval != nil, p.Window == InFlight, p.Restore > 0, p.Reported && p.Restore == 0, len(p.CountedStatuses) > 0} {
		if is {
			kinds++
		}
	}
	timed := p.MinInterval == nil && p.Window != InFlight && p.Restore == 0
	switch {
	case p.Name == "" || strings.ContainsAny(p.Name, ".=, \n"):
		return errors.New("name: it must not be empty and must not contain dots, commas, equals signs or spaces")
	case kinds > 1:
		return errors.New("a policy must have only one of `window`, `restore`, `window: in-flight`, `reported`, `minInterval` and `countedStatuses`; write the others as separate policies")
	case p.Window == Day:
		return errors.New("window: a policy with `window: day` counts all calls of the source, so a scope, a unit or costs are not allowed; configure a separate source for this limit")
	case p.LowReserve != 0 || p.TimeZone != "":
		return errors.New("lowReserve, timeZone: not allowed in a policy with a scope, a unit or costs; remove them")
	case p.MinInterval != nil && (p.MinInterval.Min <= 0 || (p.MinInterval.Max != 0 && p.MinInterval.Max < p.MinInterval.Min) || p.MinInterval.Max > time.Hour):
		return errors.New("minInterval: must have the form {min: 600ms, max: 1800ms}, with a maximum of 1h")
	case p.MinInterval != nil && (p.Limit != 0 || p.Window != 0 || p.Target != 0):
		return errors.New("minInterval: not allowed together with `limit`, `target` or `window`; remove them")
	case p.MinInterval == nil && p.Limit < 1:
		return fmt.Errorf("limit: %d is too small; it must be at least 1", p.Limit)
	case p.Limit > 1e9:
		return fmt.Errorf("limit: %d is above the maximum of 1e9", p.Limit)
	case p.Target < 0 || p.Target > p.Limit:
		return fmt.Errorf("target: %d must be between 1 and the limit of %d", p.Target, p.Limit)
	case timed && (window < 100*time.Millisecond || window > 31*24*time.Hour):
		return fmt.Errorf("window: %v must be in-flight, or between 100ms and 744h", p.Window)
	case timed && p.budget() > int(window/time.Microsecond):
		return fmt.Errorf("limit: %d in %v is more than a million units a second, the highest rate that can be paced", p.Limit, p.Window)
	case p.Restore > 0 && p.Window != 0:
		return errors.New("window: not allowed in a policy with `restore`; remove one of the two")
	case p.Restore > 1e6:
		return fmt.Errorf("restore: %v is more than a million units a second, the highest rate that can be paced", p.Restore)
	case p.Lease != 0 && p.Window != InFlight:
		return errors.New("lease: allowed only in a policy with `window: in-flight`; remove it")
	case p.Pace && (!p.Reported || p.Restore > 0):
		return errors.New("pace: allowed only in a policy with `reported: true`; remove it")
	case len(p.FreeStatuses) > 0 && len(p.CountedStatuses) > 0:
		return errors.New("freeStatuses and countedStatuses: a policy can have only one of these settings; remove the other")
	case p.MinInterval == nil && p.HighReserve.in(max(0, window)) >= p.budget():
		return fmt.Errorf("highReserve: %v leaves LOW no call of %d; lower it", p.HighReserve, p.budget())
	}
	for _, of := range slices.Sorted(maps.Keys(p.Costs)) {
		if n := p.Costs[of]; n < 0 || n > p.Limit {
			return fmt.Errorf("costs.%s: %d must be between 0 and the limit of %d", of, n, p.Limit)
		}
	}
	return nil
}

// bound returns the throughput of one bucket of the policy. `ok` is false for limits without a rate:
// calls in flight, breakers and error budgets.
func (s scopedPolicy) bound() (b PolicyBound, ok bool) {
	p := s.policy
	b = PolicyBound{Name: p.Name, Limit: p.Limit, Window: p.Window, Scope: p.Scope, Unit: p.Unit, Max: p.Limit}
	kept := float64(p.HighReserve.in(time.Duration(max(0, p.Window))))
	switch t := s.terms.(type) {
	case unitLogTerms:
		b.PerWindow, b.Low = s.perWindow(t, t.Units), s.perWindow(t, t.LowUnits)
		b.Max = int(t.Units)
	case leakyBucketTerms:
		b.Window = Window(time.Second)
		b.PerWindow, b.Low = float64(p.Restore), float64(p.Restore)
	case reportedTerms:
		b.PerWindow, b.Low = float64(t.Units), float64(t.Units)-kept
	case minIntervalTerms:
		b.Window = Window(time.Second)
		b.PerWindow = 2e6 / float64(t.MinGap+t.MaxGap)
		b.Low = b.PerWindow
	case concurrencyTerms, breakerTerms:
		return b, false
	}
	return b, len(p.CountedStatuses) == 0 // an error budget has no rate: successful calls cost nothing
}

// wholeCalls rounds a number of units down to a multiple of the cost of the cheapest call.
func (s scopedPolicy) wholeCalls(units int64) float64 {
	return float64(units - units%int64(s.cheapest))
}

// perWindow returns how many units per window a log of `units` units grants under constant
// demand.
func (s scopedPolicy) perWindow(t unitLogTerms, units int64) float64 {
	window := float64(s.policy.Window)
	most := s.wholeCalls(units) * window / float64(micros(t.Reach+t.Grain-1))
	if t.PaceNs > 0 {
		most = min(most, window/float64(t.PaceNs))
	}
	return most
}

// template is a text with {placeholders}. literals[i] is the text before the placeholder names[i].
type template struct {
	literals, names []string
}

func parseScope(text string) (template, error) {
	var t template
	rest := text
	for {
		literal, after, found := strings.Cut(rest, "{")
		t.literals = append(t.literals, literal)
		if !found {
			if strings.Contains(literal, "}") {
				return t, fmt.Errorf("%q has a } without a {", text)
			}
			return t, nil
		}
		name, left, closed := strings.Cut(after, "}")
		if !closed || name == "" || strings.Contains(literal, "}") {
			return t, fmt.Errorf("%q must have names in braces, for example {credential}/{endpoint}", text)
		}
		t.names, rest = append(t.names, name), left
	}
}

// Placeholders returns the placeholder names of a scope, or none if it is malformed.
func Placeholders(scope string) []string {
	t, _ := parseScope(scope)
	return t.names
}

func (t template) fill(value func(name string) string) string {
	var out strings.Builder
	for i, name := range t.names {
		out.WriteString(t.literals[i])
		// The values are quoted, so that different scope values never give the same text. The
		// length limit bounds the length of Redis keys.
		fmt.Fprintf(&out, "%.120q", value(name))
	}
	out.WriteString(t.literals[len(t.names)])
	return out.String()
}
