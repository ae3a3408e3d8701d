package limiter

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// InFlight is the window of a policy that bounds calls under way at once.
const InFlight Window = -2

// maxLogEntries is the number of entries that a sliding-window log has at most within its
// reach: a window of more units has a grain of a 200th of its reach.
const maxLogEntries = 200

// Requests is the unit of a policy that names none: each call costs one.
const Requests = "requests"

// MinInterval is how far apart two calls are at least: by a random time between two.
type MinInterval struct {
	Min time.Duration `yaml:"min"`
	Max time.Duration `yaml:"max"`
}

// Match says which calls a policy charges: those of all its lists that are not empty.
type Match struct {
	Methods   []string `yaml:"methods,omitempty"`
	Endpoints []string `yaml:"endpoints,omitempty"` // facet/document, or facet
}

func (m Match) fits(c Call) bool {
	return (len(m.Methods) == 0 || slices.Contains(m.Methods, c.Method)) &&
		(len(m.Endpoints) == 0 || slices.Contains(m.Endpoints, c.Endpoint) || slices.Contains(m.Endpoints, c.facet()))
}

// Call is what a call is charged by, and may be made with.
type Call struct {
	Endpoint string // facet/document
	Method   string
	Key      string
	Resource string // the upstream's own name for what is charged; empty: not known yet
	// Values are for the {placeholders} of scopes besides.
	Values map[string]string
	// Costs are the units that it is estimated to cost; of one that is not there, 1.
	Costs map[string]int
	// Client is on whose behalf it is made; those of one client share its turns.
	Client string
	// Credentials may be used for it; the limiter chooses one. None: the one that there is.
	Credentials []string
}

func (c Call) facet() string {
	facet, _, _ := strings.Cut(c.Endpoint, "/")
	return facet
}

// value returns what a placeholder of a scope stands for.
func (c Call) value(name, credential string) string {
	switch name {
	case "credential":
		return credential
	case "endpoint":
		return c.Endpoint
	case "facet":
		return c.facet()
	case "method":
		return c.Method
	case "key":
		return c.Key
	case "resource":
		if c.Resource == "" {
			return "of " + c.Endpoint // until an answer names it
		}
		return c.Resource
	}
	return c.Values[name]
}

// scoped reports whether a policy is charged by buckets of its own, one for each value of
// its scope, and not by every call of the source alike.
func (p Policy) scoped() bool {
	return p.Scope != "" || p.Unit != "" || p.Restore > 0 || p.MinInterval != nil || p.Reported || p.Window == InFlight ||
		len(p.Match.Methods)+len(p.Match.Endpoints)+len(p.Costs)+len(p.FreeStatuses)+len(p.CountedStatuses) > 0
}

// kind is what a bucket keeps, by the letter that the script knows it by.
type kind byte

const (
	logKind         kind = 'S'
	leakyBucketKind kind = 'G'
	minIntervalKind kind = 'P'
	reportedKind    kind = 'N'
	concurrencyKind kind = 'C'
	breakerKind     kind = 'H'
)

// scopedPolicy is a scoped policy as the script takes it, or what may be halted alone.
type scopedPolicy struct {
	policy  Policy // of a halt only its name and scope
	kind    kind
	scope   template
	numbers []int64 // behind the name's number
	// cheapest is the units that the cheapest call is estimated to cost.
	cheapest int
}

// nameNumber stands for a policy's name in the quota's text.
func nameNumber(name string) int64 {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	return int64(sum.Sum64() % 1e15)
}

// newScopedPolicy returns the section of a scoped policy, or an error that says what would be
// right.
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
		s.kind = minIntervalKind
		s.numbers = []int64{(p.MinInterval.Min + permitLife + jitter).Microseconds(), (max(p.MinInterval.Min, p.MinInterval.Max) + permitLife + jitter).Microseconds()}
	case p.Window == InFlight:
		s.kind = concurrencyKind
		s.numbers = []int64{int64(budget), int64(budget) - kept, max(p.Lease, lease).Microseconds()}
		if lease > 0 && p.Lease > 0 && p.Lease < lease {
			return s, fmt.Errorf("lease: %v is shorter than a call may take (%v); a place would be given away while it is used", p.Lease, lease)
		}
	case p.Reported && p.Restore == 0:
		s.kind = reportedKind
		s.numbers = []int64{int64(budget), time.Duration(p.Window).Microseconds(), kept, boolNumber(p.Pace), max(lease, time.Second).Microseconds()}
	case p.Restore > 0:
		// While calls are on their way, the upstream restores less than we think.
		early := int(math.Ceil(float64(p.Restore)*(permitLife+jitter).Seconds())) + 1
		if early > budget/2 {
			return s, fmt.Errorf("limit: %d units are restored while a call may be on its way, of %d at once; that can't be kept to", early, budget)
		}
		s.kind = leakyBucketKind
		s.numbers = []int64{int64(math.Ceil(1e9 / float64(p.Restore))), int64(budget - early), kept, boolNumber(p.Reported), 0}
	case len(p.CountedStatuses) > 0: // half at once and half over the window: what is given back is soon there
		s.kind = leakyBucketKind
		s.numbers = []int64{reach.Nanoseconds()/int64(budget-budget/2) + 1, int64(budget / 2), kept, 0, reach.Microseconds()}
	default:
		s.kind = logKind
		s.numbers = p.logNumbers(reach, config)
	}
	return s, p.checkDearest(config, budget, kept)
}

// logNumbers returns the numbers of a sliding-window log (lua/limiter_buckets.lua, section S).
//
// A window of few calls is not paced: all of it may be used at once. Neither is one whose
// answers give units back, since a pace by estimates would leave these unused. Any other
// window is paced: a call may go when those before it have had their time at the rate of
// the limit, less the share that the dearest call needs at once, of up to 2 % of the limit.
func (p Policy) logNumbers(reach time.Duration, config Config) []int64 {
	budget := p.budget()
	grain, low := int64(1), int64(budget-p.HighReserve.in(time.Duration(p.Window)))
	if budget > maxLogEntries {
		grain = reach.Microseconds()/maxLogEntries + 1
	}
	numbers := []int64{reach.Microseconds() + 1, int64(budget), low, grain}
	_, dearest := p.costRange(config)
	fewCalls := budget <= maxLogEntries && p.Unit == "" && dearest == 1
	if fewCalls || len(p.FreeStatuses) > 0 || slices.Contains(config.CostReported, p.Name) {
		return append(numbers, 0, 1, 0, int64(budget))
	}
	burst := max(1, budget/100, min(dearest, budget/50))
	interval := reach.Nanoseconds()/int64(budget-burst+1) + 1
	atOnce := min(budget, burst+dearest+budget/maxLogEntries) // and by the grain
	return append(numbers, interval, int64(burst), min(int64(budget)-low, int64(burst)/2), int64(atOnce))
}

// checkDearest returns an error if the dearest call could never be sent by the policy.
func (p Policy) checkDearest(config Config, budget int, kept int64) error {
	_, dearest := p.costRange(config)
	switch {
	case p.MinInterval != nil || p.Reported || p.Window == InFlight:
		return nil
	case dearest > budget:
		return fmt.Errorf("limit: the dearest call costs %d units, and %d are used; raise the limit or target, or lower the cost", dearest, budget)
	case int64(dearest) > int64(budget)-kept:
		return fmt.Errorf("highReserve: it leaves LOW %d of %d units, and the dearest call costs %d; lower highReserve", int64(budget)-kept, budget, dearest)
	}
	return nil
}

func boolNumber(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// budget is how many units of the limit are used.
func (p Policy) budget() int {
	if p.Target > 0 {
		return p.Target
	}
	return p.Limit
}

// costRange returns the units that the cheapest and the dearest call are estimated to cost.
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

// cost returns the units that a call is estimated to cost.
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
	ways := 0
	for _, is := range []bool{p.MinInterval != nil, p.Window == InFlight, p.Restore > 0, p.Reported && p.Restore == 0, len(p.CountedStatuses) > 0} {
		if is {
			ways++
		}
	}
	timed := p.MinInterval == nil && p.Window != InFlight && p.Restore == 0
	switch {
	case p.Name == "" || strings.ContainsAny(p.Name, ".=, \n"):
		return errors.New("name: it must be there, without dots, commas and spaces")
	case ways > 1:
		return errors.New("a policy is one of: a window, a bucket (restore), in-flight, reported, a minInterval, an error budget (countedStatuses); write the others as policies of their own")
	case p.Window == Day:
		return errors.New("window: a day is counted for the whole source; describe what has a day of its own as a source of its own")
	case p.LowReserve != 0 || p.TimeZone != "":
		return errors.New("lowReserve, timeZone: a policy with a scope, a unit or a cost has neither")
	case p.MinInterval != nil && (p.MinInterval.Min <= 0 || (p.MinInterval.Max != 0 && p.MinInterval.Max < p.MinInterval.Min) || p.MinInterval.Max > time.Hour):
		return errors.New("minInterval: write it as {least: 600ms, most: 1800ms}, at most an hour")
	case p.MinInterval != nil && (p.Limit != 0 || p.Window != 0 || p.Target != 0):
		return errors.New("minInterval: it has no limit, target and window")
	case p.MinInterval == nil && p.Limit < 1:
		return fmt.Errorf("limit: %d is too small; it must be at least 1", p.Limit)
	case p.Limit > 1e9:
		return fmt.Errorf("limit: %d is more than can be counted", p.Limit)
	case p.Target < 0 || p.Target > p.Limit:
		return fmt.Errorf("target: %d must lie between 1 and the limit of %d", p.Target, p.Limit)
	case timed && (window < 100*time.Millisecond || window > 31*24*time.Hour):
		return fmt.Errorf("window: %v must be in-flight, or lie between 100ms and 744h", p.Window)
	case timed && p.budget() > int(window/time.Microsecond):
		return fmt.Errorf("limit: %d in %v is more than a million a second, which can't be paced", p.Limit, p.Window)
	case p.Restore > 0 && p.Window != 0:
		return errors.New("window: a bucket has none; it is full again by its restore rate")
	case p.Restore > 1e6:
		return fmt.Errorf("restore: %v is more than a million a second, which can't be paced", p.Restore)
	case p.Lease != 0 && p.Window != InFlight:
		return errors.New("lease: only in-flight has one")
	case p.Pace && (!p.Reported || p.Restore > 0):
		return errors.New("pace: only a reported limit is paced")
	case len(p.FreeStatuses) > 0 && len(p.CountedStatuses) > 0:
		return errors.New("freeStatuses and countedStatuses exclude each other")
	case p.MinInterval == nil && p.HighReserve.in(max(0, window)) >= p.budget():
		return fmt.Errorf("highReserve: %v leaves LOW nothing of %d", p.HighReserve, p.budget())
	}
	for _, of := range slices.Sorted(maps.Keys(p.Costs)) {
		if n := p.Costs[of]; n < 0 || n > p.Limit {
			return fmt.Errorf("costs.%s: %d must lie between 0 and the limit of %d", of, n, p.Limit)
		}
	}
	return nil
}

// bound returns what a scoped policy comes to: of each of its buckets; ok is false for a
// bound on what is under way, which has no rate.
func (s scopedPolicy) bound() (b PolicyBound, ok bool) {
	p := s.policy
	b = PolicyBound{Name: p.Name, Limit: p.Limit, Window: p.Window, Scope: p.Scope, Unit: p.Unit, Max: p.Limit}
	kept := float64(p.HighReserve.in(time.Duration(max(0, p.Window))))
	switch s.kind {
	case logKind:
		b.PerWindow, b.Low = s.perWindow(s.numbers[1]), s.perWindow(s.numbers[2])
		b.Max = int(s.numbers[1])
	case leakyBucketKind:
		b.Window = Window(time.Second)
		b.PerWindow, b.Low = float64(p.Restore), float64(p.Restore)
	case reportedKind:
		b.PerWindow, b.Low = float64(s.numbers[0]), float64(s.numbers[0])-kept
	case minIntervalKind:
		b.Window = Window(time.Second)
		b.PerWindow = 2e6 / float64(s.numbers[0]+s.numbers[1])
		b.Low = b.PerWindow
	case concurrencyKind, breakerKind:
		return b, false
	}
	return b, len(p.CountedStatuses) == 0 // answers that go well cost nothing of an error budget
}

// wholeCalls returns how many of these units the cheapest calls use that fit into them.
func (s scopedPolicy) wholeCalls(units int64) float64 {
	return float64(units - units%int64(s.cheapest))
}

// perWindow returns the units that a saturated log with so many of them gives a window.
func (s scopedPolicy) perWindow(units int64) float64 {
	window := float64(s.policy.Window)
	most := s.wholeCalls(units) * window / float64(micros(s.numbers[0]+s.numbers[3]-1))
	if interval := s.numbers[4]; interval > 0 {
		most = min(most, window/float64(interval))
	}
	return most
}

// template is text with {placeholders}: literals and names take turns.
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
				return t, fmt.Errorf("%q has a } without its {", text)
			}
			return t, nil
		}
		name, left, closed := strings.Cut(after, "}")
		if !closed || name == "" || strings.Contains(literal, "}") {
			return t, fmt.Errorf("%q must have names in braces, as in {credential}/{endpoint}", text)
		}
		t.names, rest = append(t.names, name), left
	}
}

// Placeholders returns the names in a scope that is well written.
func Placeholders(scope string) []string {
	t, _ := parseScope(scope)
	return t.names
}

func (t template) fill(value func(name string) string) string {
	var out strings.Builder
	for i, name := range t.names {
		out.WriteString(t.literals[i])
		// A value can't move a boundary, nor grow a key without bound.
		fmt.Fprintf(&out, "%.120q", value(name))
	}
	out.WriteString(t.literals[len(t.names)])
	return out.String()
}
