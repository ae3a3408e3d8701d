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
	// permitLife is V: how long after its slot a permit may be spent.
	permitLife = 40 * time.Millisecond
	// horizon is how far ahead of now a slot may be reserved.
	horizon = 150 * time.Millisecond
	// maxWindowLogCalls is the greatest limit that is kept as an exact ring of slots.
	maxWindowLogCalls = 99
	// maxPartitionQuiet bounds the part of a window that lanes stay quiet for after their
	// state was lost: they start empty, so that the rest of it needs no silence.
	maxPartitionQuiet = time.Second
	// maxBackoff is what a brake of unknown length doubles up to.
	maxBackoff = time.Minute
)

// Quota is a Config that was found to hold, as the script takes it.
type Quota struct {
	config      Config
	partitioned []partitionedWindow
	windowLogs  []windowLog
	day         *day
	zone        *time.Location // of the rate caps
	scoped      []scopedPolicy // in the order of their sections, the halts last
}

// windowLog keeps a window of few calls exactly: the last calls slots are remembered,
// and the next one lies a reach behind the first of them. HIGH may use high of them, and LOW
// low of them.
type windowLog struct {
	policy           Policy
	reach            time.Duration // a little more than W + V + J
	calls, high, low int
}

// sections returns the rings that the script keeps for one: reach, slots that HIGH may use
// and slots that LOW may use. A single ring leaves HIGH's reserve free whoever has used the
// others. With a reserve for LOW too there is a ring of all slots and one for each lane, whose
// reaches differ, since the script knows a ring by its reach.
func (r windowLog) sections() [][3]int64 {
	reach, calls, high, low := r.reach.Microseconds(), int64(r.calls), int64(r.high), int64(r.low)
	if high == calls {
		return [][3]int64{{reach, calls, low}}
	}
	return [][3]int64{{reach, calls, calls}, {reach + 1, high, 0}, {reach + 2, 0, low}}
}

// day keeps a calendar day.
type day struct {
	policy  Policy
	reserve float64 // calls a second kept for HIGH until the end of the day
}

// NewQuota returns the quota, or an error that names the setting and what would
// be right, if calls could reach the upstream faster than it allows.
func NewQuota(config Config) (Quota, error) {
	q := Quota{config: config, zone: time.UTC}
	if config.Jitter < 0 || config.Jitter > time.Second {
		return Quota{}, fmt.Errorf("jitter: %v must lie between 0 and 1s", config.Jitter)
	}
	if config.Backoff < 0 || config.Backoff > maxBackoff {
		return Quota{}, fmt.Errorf("backoff: %v must lie between 0 and %v", config.Backoff, maxBackoff)
	}
	if err := checkEachRateCap(config.LowRateCaps); err != nil {
		return Quota{}, fmt.Errorf("lowRateCaps%w", err)
	}
	var errs []error
	for i, p := range config.Policies {
		if err := q.add(p, config.Policies[:i]); err != nil {
			errs = append(errs, fmt.Errorf("policies[%d] %q: %w", i, p.Name, err))
		}
	}
	whole := len(q.partitioned) + len(q.windowLogs)
	if whole == 0 && (q.day != nil || len(q.scoped) == 0) && len(errs) == 0 {
		errs = append(errs, errors.New("policies: there must be at least one with a window such as 1s; a day alone could be used up at once"))
	}
	for _, name := range slices.Sorted(maps.Keys(config.Breakers)) {
		scope, err := parseScope(config.Breakers[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("breakers.%s: %w", name, err))
		}
		q.scoped = append(q.scoped, scopedPolicy{policy: Policy{Name: name + " breaker", Scope: config.Breakers[name]}, kind: breakerKind, scope: scope, cheapest: 1})
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
			return errors.New("the name is taken by another policy")
		case other.Window == p.Window && !other.scoped() && !p.scoped():
			return fmt.Errorf("window: %v is the window of %q too; give the lower of the two limits", p.Window, other.Name)
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
			return fmt.Errorf("timeZone: %w; write one as in Asia/Seoul", err)
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
		return errors.New("name: it must be there, without dots, commas and spaces")
	case p.Limit < 1:
		return fmt.Errorf("limit: %d is too small; it must be at least 1", p.Limit)
	case p.Window != Day && (window < 100*time.Millisecond || window > time.Hour):
		return fmt.Errorf("window: %v must be day, or lie between 100ms and 1h", p.Window)
	case p.Window != Day && p.TimeZone != "":
		return errors.New("timeZone: only a day has one")
	case p.Window == Day && (p.Target != 0 || p.LowReserve != 0):
		return errors.New("target, lowReserve: a day has neither; lower its limit")
	case p.Limit > int(window/(20*time.Microsecond)):
		return fmt.Errorf("limit: %d in %v is more than the 50,000 a second that can be paced", p.Limit, p.Window)
	case high < 0 || p.LowReserve < 0 || p.Target < 0:
		return errors.New("target, highReserve and lowReserve must not be negative")
	case p.Target > p.Limit:
		return fmt.Errorf("target: %d is above the limit of %d", p.Target, p.Limit)
	case high >= budget || p.LowReserve >= budget-high:
		return fmt.Errorf("highReserve and lowReserve: %v and %d leave nothing of %d to share", p.HighReserve, p.LowReserve, budget)
	}
	return nil
}

// PolicyBound is what one policy comes to: with a scope, for each of its values.
type PolicyBound struct {
	Name   string
	Limit  int
	Window Window
	Scope  string
	Unit   string // empty: calls
	// PerWindow are the calls a window that a saturated budget gives; most of
	// them are LOW's to use.
	PerWindow, Low float64
	// Max is the greatest number of calls that can reach the upstream within
	// the window.
	Max int
}

// Bounds returns what each policy comes to.
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
	for _, section := range q.scoped {
		if b, ok := section.bound(); ok {
			all = append(all, b)
		}
	}
	return all
}

// maxUncounted returns what the calls of a time are estimated by: no more than most
// and rate a second are ever made in it.
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

// initialBackoff returns the first pause after a refusal that did not say for how long.
func (q Quota) initialBackoff() time.Duration {
	if q.config.Backoff > 0 {
		return q.config.Backoff
	}
	least := maxBackoff
	for _, p := range q.config.Policies {
		if p.Window > 0 {
			least = min(least, time.Duration(p.Window))
		}
	}
	return max(least, time.Second)
}

// Quiet returns for how long no permit is given after the state in Redis was
// lost.
func (q Quota) Quiet() time.Duration {
	quiet := q.quiet()
	for _, r := range q.windowLogs {
		quiet = max(quiet, r.reach)
	}
	for _, s := range q.scoped {
		switch {
		case len(s.policy.Match.Methods)+len(s.policy.Match.Endpoints) > 0: // others may go
		case s.kind == logKind: // the units that were used last leave their window last
			quiet = max(quiet, micros(s.numbers[0]-(s.numbers[1]-s.numbers[7])*s.numbers[4]/1000))
		case s.kind == concurrencyKind: // who had a place may have it still
			quiet = max(quiet, micros(s.numbers[2]))
		}
	}
	return quiet
}

// quiet is the part of it that the lanes need; rings see to themselves.
func (q Quota) quiet() time.Duration {
	quiet := time.Duration(0)
	for _, l := range q.partitioned {
		quiet = max(quiet, min(l.window, maxPartitionQuiet), l.partitions[0].interval, l.partitions[1].interval, l.partitions[2].interval)
	}
	return quiet + permitLife + q.config.Jitter + horizon
}
