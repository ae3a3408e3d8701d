package contract

import (
	"math"
	"time"
)

// tolerance is the accepted rounding error of sums.
const tolerance = 1e-6

// counter enforces one policy for one scope. Times must not decrease between calls.
type counter interface {
	// remaining returns the number of available units.
	remaining(at time.Time) float64
	// take takes units, even if they are not available. Negative units are refunded.
	take(at time.Time, units float64)
	// reset returns when all units are available again, if no unit is taken until then.
	reset(at time.Time) time.Time
	// availableAt returns when the given number of units is available, if no unit is taken until then.
	availableAt(at time.Time, units float64) time.Time
}

func (p *policy) counter() counter {
	switch p.kind {
	case fixed, aligned:
		return &windowCounter{policy: p}
	case bucket:
		return &bucketCounter{policy: p, level: p.limit}
	case concurrency:
		return &concurrencyCounter{policy: p}
	case minInterval:
		return &intervalCounter{policy: p}
	default:
		return &slidingCounter{policy: p}
	}
}

// slidingCounter enforces a limit in any sliding window. It stores a log of the charges.
type slidingCounter struct {
	policy *policy
	taken  []logEntry
	sum    float64
}

func (c *slidingCounter) dropExpired(at time.Time) {
	n := 0
	for n < len(c.taken) && at.Sub(c.taken[n].at) > c.policy.window {
		c.sum -= c.taken[n].units
		n++
	}
	c.taken = c.taken[n:]
}

func (c *slidingCounter) remaining(at time.Time) float64 {
	c.dropExpired(at)
	return c.policy.limit - c.sum
}

func (c *slidingCounter) take(at time.Time, units float64) {
	c.dropExpired(at)
	c.taken = append(c.taken, logEntry{at: at, units: units})
	c.sum += units
}

// after returns when the units of an entry become available again. The window that begins with
// the entry includes both of its ends, so this is one nanosecond after the end of the window.
func (c *slidingCounter) after(e logEntry) time.Time { return e.at.Add(c.policy.window + 1) }

func (c *slidingCounter) reset(at time.Time) time.Time {
	c.dropExpired(at)
	if len(c.taken) == 0 {
		return at
	}
	return c.after(c.taken[len(c.taken)-1])
}

func (c *slidingCounter) availableAt(at time.Time, units float64) time.Time {
	c.dropExpired(at)
	left := c.policy.limit - c.sum
	for _, e := range c.taken {
		if left += e.units; left >= units-tolerance {
			return c.after(e)
		}
	}
	return at.Add(c.policy.window)
}

// windowCounter enforces a limit in each of consecutive windows (kinds fixed and aligned).
type windowCounter struct {
	policy *policy
	ends   time.Time
	used   float64
}

// advance starts a new window if the current one has ended.
func (c *windowCounter) advance(at time.Time) {
	if at.Before(c.ends) {
		return
	}
	c.used, c.ends = 0, at.Add(c.policy.window)
	if c.policy.kind == aligned {
		into := time.Duration(at.Add(-c.policy.offset).UnixNano() % int64(c.policy.window))
		c.ends = at.Add(c.policy.window - into)
	}
}

func (c *windowCounter) remaining(at time.Time) float64 {
	if !at.Before(c.ends) {
		return c.policy.limit
	}
	return c.policy.limit - c.used
}

func (c *windowCounter) take(at time.Time, units float64) {
	c.advance(at)
	c.used += units
}

func (c *windowCounter) reset(at time.Time) time.Time {
	if c.policy.kind == aligned {
		c.advance(at)
	}
	if !at.Before(c.ends) {
		return at.Add(c.policy.window)
	}
	return c.ends
}

func (c *windowCounter) availableAt(at time.Time, _ float64) time.Time { return c.reset(at) }

// bucketCounter enforces a bucket that is restored continuously (a leaky bucket).
type bucketCounter struct {
	policy *policy
	level  float64
	at     time.Time
}

func (c *bucketCounter) remaining(at time.Time) float64 {
	return min(c.policy.limit, c.level+at.Sub(c.at).Seconds()*c.policy.restore())
}

func (c *bucketCounter) take(at time.Time, units float64) {
	c.level, c.at = min(c.policy.limit, c.remaining(at)-units), at
}

func (c *bucketCounter) reset(at time.Time) time.Time { return c.availableAt(at, c.policy.limit) }

func (c *bucketCounter) availableAt(at time.Time, units float64) time.Time {
	missing := max(0, units-c.remaining(at))
	return at.Add(time.Duration(math.Ceil(missing / c.policy.restore() * float64(time.Second))))
}

// concurrencyCounter counts calls in flight. It cannot know when a call in flight will end, so
// reset and availableAt return a time one second after the given time.
type concurrencyCounter struct {
	policy *policy
	taken  float64
}

func (c *concurrencyCounter) remaining(time.Time) float64     { return c.policy.limit - c.taken }
func (c *concurrencyCounter) take(_ time.Time, units float64) { c.taken += units }
func (c *concurrencyCounter) reset(at time.Time) time.Time    { return at.Add(time.Second) }
func (c *concurrencyCounter) availableAt(at time.Time, _ float64) time.Time {
	return at.Add(time.Second)
}

// intervalCounter enforces a minimum interval between calls.
type intervalCounter struct {
	policy *policy
	next   time.Time
}

func (c *intervalCounter) remaining(at time.Time) float64 {
	if at.Before(c.next) {
		return 0
	}
	return 1
}

func (c *intervalCounter) take(at time.Time, _ float64)             { c.next = at.Add(c.policy.window) }
func (c *intervalCounter) reset(time.Time) time.Time                { return c.next }
func (c *intervalCounter) availableAt(time.Time, float64) time.Time { return c.next }
