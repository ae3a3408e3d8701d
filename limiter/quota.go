package limiter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// permitLife is how long after the time of its slot a permit can be spent (V in the proof in
	// doc.go).
	permitLife = 40 * time.Millisecond
	// horizon is how far in the future a slot can be reserved.
	horizon = 150 * time.Millisecond
	// maxWindowLogCalls is the largest limit that is kept as a sliding-window log. Larger
	// limits use GCRA partitions.
	maxWindowLogCalls = 99
	// maxPartitionQuiet limits the quiet period that GCRA partitions need after a loss of state.
	// Partitions then start without a burst, so the quiet period can be shorter than the window.
	maxPartitionQuiet = time.Second
	// maxBackoff is the longest backoff when the upstream names no time.
	maxBackoff = time.Minute
)

// Quota is a validated Config in the form that limiter_acquire takes.
type Quota struct {
	config      Config
	partitioned []partitionedWindow
	windowLogs  []windowLog
	day         *day
	zone        *time.Location // time zone of the day policy
	scoped      []scopedPolicy // scoped policies, then scope breakers, in the order in which the script numbers them
}

// windowLog enforces a window with a small limit exactly. Redis keeps the times of the last
// `calls` slots. The next slot is at least `reach` later than the oldest of these. HIGH can use
// `high` of the slots, LOW `low`.
type windowLog struct {
	policy           Policy
	reach            time.Duration // window + lifetime of a permit + jitter (W + V + J in doc.go), slightly rounded up
	calls, high, low int
}

// terms returns the terms of each log that Redis keeps for the policy. Without a reserve for LOW one
// log is enough: LOW stops before HIGH's reserve. With a reserve for LOW there are three logs: one of
// all slots and one for each lane. The ids contain the reach, because a log can't be used with a longer
// reach.
func (r windowLog) terms() []windowLogTerms {
	reach, calls, high, low := r.reach.Microseconds(), int64(r.calls), int64(r.high), int64(r.low)
	log := func(of string, high, low int64) windowLogTerms {
		return windowLogTerms{newPolicyHead("windowLog", fmt.Sprintf("%d%s", reach, of)), reach, high, low}
	}
	if high == calls {
		return []windowLogTerms{log("", calls, low)}
	}
	return []windowLogTerms{log("", calls, calls), log(" HIGH", high, 0), log(" LOW", 0, low)}
}

// day is the policy that limits the calls of a calendar day.
type day struct {
	policy  Policy
	reserve float64 // calls per second that are kept for HIGH until the end of the day
}

// NewQuota validates a configuration. It rejects invalid settings, and targets with which the
// upstream could receive more calls than its limit. The error names the setting and a value that
// would be valid.
func NewQuota(config Config) (Quota, error) {
	q := Quota{config: config, zone: time.UTC}
	if config.Jitter < 0 || config.Jitter > time.Second {
		return Quota{}, fmt.Errorf("jitter: %v must be between 0 and 1s", config.Jitter)
	}
	if config.Backoff < 0 || config.Backoff > maxBackoff {
		return Quota{}, fmt.Errorf("backoff: %v must be between 0 and %v", config.Backoff, maxBackoff)
	}
	var errs []error
	for i, p := range config.Policies {
		if err := q.add(p, config.Policies[:i]); err != nil {
			errs = append(errs, fmt.Errorf("policies[%d] %q: %w", i, p.Name, err))
		}
	}
	whole := len(q.partitioned) + len(q.windowLogs)
	if whole == 0 && (q.day != nil || len(q.scoped) == 0) && len(errs) == 0 {
		errs = append(errs, errors.New("policies: at least one policy needs a short window such as `window: 1s`; with only `window: day`, all calls of the day could be sent at once"))
	}
	for _, name := range slices.Sorted(maps.Keys(config.Breakers)) {
		scope, err := parseScope(config.Breakers[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("breakers.%s: %w", name, err))
		}
		p := Policy{Name: name + " breaker", Scope: config.Breakers[name]}
		q.scoped = append(q.scoped, scopedPolicy{policy: p, terms: breakerTerms{newPolicyHead(breakerKind, p.Name)}, scope: scope, cheapest: 1})
	}
	if err := errors.Join(errs...); err != nil {
		return Quota{}, err
	}
	return q, nil
}

func (q *Quota) add(p Policy, before []Policy) error {
	for _, other := range before {
		switch {
		case other.Name == p.Name:
			return errors.New("another policy has the same name")
		case other.Window == p.Window && !other.scoped() && !p.scoped():
			return fmt.Errorf("window: policy %q has the window %v too; keep only the policy with the lower limit", other.Name, p.Window)
		}
	}
	if p.scoped() {
		s, err := newScopedPolicy(p, q.config)
		q.scoped = append(q.scoped, s)
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	switch {
	case p.Window == Day:
		zone, err := time.LoadLocation(p.TimeZone)
		if err != nil {
			return fmt.Errorf("timeZone: %w; use a name such as Asia/Seoul", err)
		}
		q.zone = zone
		q.day = &day{p, p.HighReserve.perSecond(24 * time.Hour)}
	case p.Limit <= maxWindowLogCalls:
		calls := p.Limit
		if p.Target > 0 {
			calls = p.Target
		}
		window := time.Duration(p.Window)
		reach := window + permitLife + q.config.Jitter + time.Microsecond
		q.windowLogs = append(q.windowLogs, windowLog{p, reach, calls, calls - p.LowReserve, calls - p.HighReserve.in(window)})
	default:
		l, err := newPartitionedWindow(p, q.config.Jitter)
		if err != nil {
			return err
		}
		q.partitioned = append(q.partitioned, l)
	}
	return nil
}

func (p Policy) check() error {
	window := time.Duration(p.Window)
	if p.Window == Day {
		window = 24 * time.Hour
	}
	high := p.HighReserve.in(window)
	budget := p.Target
	if budget == 0 {
		budget = p.Limit
	}
	switch {
	case p.Name == "" || strings.ContainsAny(p.Name, ".=, \n"):
		return errors.New("name: it must not be empty and must not contain dots, commas, equals signs or spaces")
	case p.Limit < 1:
		return fmt.Errorf("limit: %d is too small; it must be at least 1", p.Limit)
	case p.Window != Day && (window < 100*time.Millisecond || window > time.Hour):
		return fmt.Errorf("window: %v must be day, or between 100ms and 1h", p.Window)
	case p.Window != Day && p.TimeZone != "":
		return errors.New("timeZone: allowed only in a policy with `window: day`; remove it")
	case p.Window == Day && (p.Target != 0 || p.LowReserve != 0):
		return errors.New("target, lowReserve: not allowed in a policy with `window: day`; remove them, and lower `limit` instead")
	case p.Limit > int(window/(20*time.Microsecond)):
		return fmt.Errorf("limit: %d in %v is more than 50,000 calls a second, the highest rate that can be paced", p.Limit, p.Window)
	case high < 0 || p.LowReserve < 0 || p.Target < 0:
		return errors.New("target, highReserve and lowReserve must not be negative")
	case p.Target > p.Limit:
		return fmt.Errorf("target: %d is above the limit of %d", p.Target, p.Limit)
	case high >= budget || p.LowReserve >= budget-high:
		return fmt.Errorf("highReserve and lowReserve: %v and %d reserve all %d calls; lower one of them, so that some calls are left for both lanes", p.HighReserve, p.LowReserve, budget)
	}
	return nil
}

// PolicyBound is the throughput of one policy. For a scoped policy it is the throughput of one
// value of its scope.
type PolicyBound struct {
	Name   string
	Limit  int
	Window Window
	Scope  string
	Unit   string // unit that is counted; empty means calls
	// PerWindow is the number of units per window that are used under constant demand. LOW can
	// use at most Low of these units.
	PerWindow, Low float64
	// Max is the largest number of calls that can reach the upstream within one window.
	Max int
}

// Bounds returns the throughput of each policy. Policies without a rate, such as a limit on
// calls in flight, are left out.
func (q Quota) Bounds() []PolicyBound {
	var all []PolicyBound
	for _, l := range q.partitioned {
		low := l.perWindow()
		if high := l.partitions[0].interval; high > 0 {
			low -= float64(l.window) / float64(high)
		}
		all = append(all, PolicyBound{Name: l.policy.Name, Limit: l.policy.Limit, Window: l.policy.Window, PerWindow: l.perWindow(), Low: low, Max: l.bound()})
	}
	for _, r := range q.windowLogs {
		share := float64(r.policy.Window) / float64(r.reach)
		all = append(all, PolicyBound{Name: r.policy.Name, Limit: r.policy.Limit, Window: r.policy.Window, PerWindow: float64(r.calls) * share, Low: float64(r.low) * share, Max: r.calls})
	}
	if d := q.day; d != nil {
		limit := float64(d.policy.Limit)
		all = append(all, PolicyBound{Name: d.policy.Name, Limit: d.policy.Limit, Window: Day, PerWindow: limit, Low: limit - 86400*d.reserve, Max: d.policy.Limit})
	}
	for _, s := range q.scoped {
		if b, ok := s.bound(); ok {
			all = append(all, b)
		}
	}
	return all
}

// maxUncounted returns an upper bound for the calls that can have been granted since a count was
// saved: `most` calls at once, plus `rate` calls per second.
func (q Quota) maxUncounted() (rate, most int) {
	for _, b := range q.Bounds() {
		if b.Window == Day || b.Scope != "" || b.Unit != "" {
			continue
		}
		if r := int(float64(b.Max)/time.Duration(b.Window).Seconds()) + 1; rate == 0 || r < rate {
			rate, most = r, b.Max
		}
	}
	return rate, most
}

// initialBackoff returns the first backoff when the upstream names no time.
func (q Quota) initialBackoff() time.Duration {
	if q.config.Backoff > 0 {
		return q.config.Backoff
	}
	shortest := maxBackoff
	for _, p := range q.config.Policies {
		if p.Window > 0 {
			shortest = min(shortest, time.Duration(p.Window))
		}
	}
	return max(shortest, time.Second)
}

// Quiet returns the quiet period: how long no permit is granted after the state in Redis was
// lost.
func (q Quota) Quiet() time.Duration {
	quiet := q.quiet()
	for _, r := range q.windowLogs {
		quiet = max(quiet, r.reach)
	}
	for _, s := range q.scoped {
		if len(s.policy.Match.Methods)+len(s.policy.Match.Endpoints) > 0 {
			continue // a policy that counts only some calls adds no quiet period for the whole source
		}
		switch t := s.terms.(type) {
		case unitLogTerms: // wait until the calls of the lost log have left the window
			quiet = max(quiet, micros(t.Reach-(t.Units-t.AtOnce)*t.PaceNs/1000))
		case concurrencyTerms: // calls from before the loss may still be in flight
			quiet = max(quiet, micros(t.Lease))
		}
	}
	return quiet
}

// quiet returns the quiet period that the GCRA partitions need. The script itself computes the
// quiet period that sliding-window logs need.
func (q Quota) quiet() time.Duration {
	quiet := time.Duration(0)
	for _, l := range q.partitioned {
		quiet = max(quiet, min(l.window, maxPartitionQuiet), l.partitions[0].interval, l.partitions[1].interval, l.partitions[2].interval)
	}
	return quiet + permitLife + q.config.Jitter + horizon
}
