package limiter

import (
	"errors"
	"fmt"
	"time"
)

const (
	// permitLife is V: how long after its slot a permit may be spent.
	permitLife = 40 * time.Millisecond
	// horizon is how far ahead of now a slot may be reserved.
	horizon = 150 * time.Millisecond
)

// Config is the quota of one source. The yaml tags are its form in the
// configuration file.
type Config struct {
	// Jitter is J: by how much the network may spread two calls.
	Jitter   time.Duration `yaml:"jitter"`
	Policies []Policy      `yaml:"policies"`
}

// Policy is one limit of a source: so many calls in any window of a length.
type Policy struct {
	Name   string        `yaml:"name"`
	Limit  int           `yaml:"limit"`
	Window time.Duration `yaml:"window"`
	// Target is how many calls of a window are used; 0: all that the bound
	// allows. HighReserve of them are kept for HIGH, LowReserve for LOW.
	Target      int `yaml:"target"`
	HighReserve int `yaml:"highReserve"`
	LowReserve  int `yaml:"lowReserve"`
}

// DefaultConfig returns the settings of a quota that says nothing else.
func DefaultConfig() Config { return Config{Jitter: 10 * time.Millisecond} }

// Lanes is a policy as the script takes it.
type Lanes struct {
	policy Policy
	reach  time.Duration // W + V + J
	lanes  [3]lane       // high, shared, low
}

// lane is a GCRA; interval 0: there is no such lane.
type lane struct {
	interval time.Duration // T, whole microseconds
	burst    int           // B
}

// slots returns the greatest number of slots in a closed window of that length.
func (l lane) slots(window time.Duration) int {
	if l.interval == 0 {
		return 0
	}
	return l.burst + int(window/l.interval)
}

// NewLanes returns the lanes of a quota, or an error that names the setting and
// what would be right, if calls could reach the upstream faster than it allows.
func NewLanes(config Config) (Lanes, error) {
	if config.Jitter < 0 || config.Jitter > time.Second {
		return Lanes{}, fmt.Errorf("jitter: %v must lie between 0 and 1s", config.Jitter)
	}
	if len(config.Policies) != 1 {
		return Lanes{}, fmt.Errorf("policies: there must be exactly one, the limit of the shortest window; this release knows no others (%d are configured)", len(config.Policies))
	}
	p := config.Policies[0]
	if err := p.check(); err != nil {
		return Lanes{}, fmt.Errorf("policies[0] %q: %w", p.Name, err)
	}
	l := Lanes{policy: p, reach: p.Window + permitLife + config.Jitter}
	if p.Target == 0 {
		l.fill()
	} else {
		l.aim()
	}
	if sum := l.Bound(); sum > p.Limit {
		fitted := Lanes{policy: p, reach: l.reach}
		fitted.fill()
		return Lanes{}, fmt.Errorf("policies[0] %q: with target %d up to %d calls could reach the upstream within %v, "+
			"which allows %d (permits live %v, jitter is %v); lower the target, or leave it out to use %.4g",
			p.Name, p.Target, sum, p.Window, p.Limit, permitLife, config.Jitter, fitted.PerWindow())
	}
	return l, nil
}

func (p Policy) check() error {
	switch {
	case p.Name == "":
		return errors.New("name is missing")
	case p.Limit < 2:
		return fmt.Errorf("limit: %d is too small; at least 2 calls a window are needed", p.Limit)
	case p.Window < 100*time.Millisecond || p.Window > time.Hour:
		return fmt.Errorf("window: %v must lie between 100ms and 1h", p.Window)
	case p.Limit > int(p.Window/(20*time.Microsecond)):
		return fmt.Errorf("limit: %d in %v is more than the 50,000 a second that can be paced", p.Limit, p.Window)
	case p.HighReserve < 0 || p.LowReserve < 0 || p.Target < 0:
		return errors.New("target, highReserve and lowReserve must not be negative")
	case p.Target > p.Limit:
		return fmt.Errorf("target: %d is above the limit of %d", p.Target, p.Limit)
	}
	budget := p.Target
	if budget == 0 {
		budget = p.Limit
	}
	if p.HighReserve+p.LowReserve >= budget {
		return fmt.Errorf("highReserve and lowReserve: %d and %d leave nothing of %d to share", p.HighReserve, p.LowReserve, budget)
	}
	return nil
}

// shares returns a number of calls a window split over the lanes.
func (p Policy) shares(calls int) [3]int {
	return [3]int{p.HighReserve, calls - p.HighReserve - p.LowReserve, p.LowReserve}
}

// aim gives the lanes the rates of the target. A twentieth of the limit is their
// burst: high's is a tenth of a second's worth, so that people's calls, which
// come in clusters, seldom wait; the rest is shared's.
func (l *Lanes) aim() {
	p := l.policy
	rest := p.Limit / 20
	for i, n := range p.shares(p.Target) {
		if n == 0 {
			continue
		}
		burst := max(1, rest)
		if i != 1 {
			burst = max(1, min(n/10, rest/2))
			rest -= burst
		}
		l.lanes[i] = lane{ceilMicros(p.Window, n), burst}
	}
	if low := l.lanes[2]; low.interval > 0 { // shared came before low
		l.lanes[1].burst = max(1, rest)
	}
}

// fill gives the lanes all the slots that the limit allows within l.reach, with
// bursts of one, as few calls a window need them: a lane of n slots there has an
// interval just longer than reach / (n − B + 1).
func (l *Lanes) fill() {
	p := l.policy
	for i, n := range p.shares(p.Limit) {
		if n == 0 {
			continue
		}
		burst := max(1, n/20)
		l.lanes[i] = lane{micros(l.reach.Microseconds()/int64(n-burst+1) + 1), burst}
	}
}

// ceilMicros returns window / n, rounded up to whole microseconds.
func ceilMicros(window time.Duration, n int) time.Duration {
	return micros((window.Microseconds() + int64(n) - 1) / int64(n))
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Bound returns the greatest number of calls that can reach the upstream within
// its window.
func (l Lanes) Bound() int {
	sum := 0
	for _, lane := range l.lanes {
		sum += lane.slots(l.reach)
	}
	return sum
}

// PerWindow returns the calls a window that saturated lanes give.
func (l Lanes) PerWindow() float64 {
	calls := 0.0
	for _, lane := range l.lanes {
		if lane.interval > 0 {
			calls += float64(l.policy.Window) / float64(lane.interval)
		}
	}
	return calls
}

// quiet is how long no slot is given after the state was lost.
func (l Lanes) quiet() time.Duration { return l.reach + horizon }
