package contract

import (
	"math"
	"time"
)

// tolerance is what sums of fractions may be off.
const tolerance = 1e-6

// counter enforces one policy for one scope. Times never run backwards.
type counter interface {
	// left is how many units may be taken.
	left(at time.Time) float64
	// take takes units, also those that are not there; negative ones are given
	// back.
	take(at time.Time, units float64)
	// reset is when all units are there again if none is taken.
	reset(at time.Time) time.Time
	// opens is when so many units are there if none is taken before.
	opens(at time.Time, units float64) time.Time
}

func (p *policy) counter() counter {
	switch p.kind {
	case fixed, aligned:
		return &windowed{policy: p}
	case bucket:
		return &stock{policy: p, held: p.limit}
	case places:
		return &seats{policy: p}
	case gap:
		return &spaced{policy: p}
	default:
		return &slid{policy: p}
	}
}

// slid remembers all that was taken in the last window.
type slid struct {
	policy *policy
	taken  []entry
	sum    float64
}

func (c *slid) forget(at time.Time) {
	n := 0
	for n < len(c.taken) && at.Sub(c.taken[n].at) > c.policy.window {
		c.sum -= c.taken[n].units
		n++
	}
	c.taken = c.taken[n:]
}

func (c *slid) left(at time.Time) float64 {
	c.forget(at)
	return c.policy.limit - c.sum
}

func (c *slid) take(at time.Time, units float64) {
	c.forget(at)
	c.taken = append(c.taken, entry{at: at, units: units})
	c.sum += units
}

// The window is closed: units are there again a nanosecond after it.
func (c *slid) after(e entry) time.Time { return e.at.Add(c.policy.window + 1) }

func (c *slid) reset(at time.Time) time.Time {
	c.forget(at)
	if len(c.taken) == 0 {
		return at
	}
	return c.after(c.taken[len(c.taken)-1])
}

func (c *slid) opens(at time.Time, units float64) time.Time {
	c.forget(at)
	left := c.policy.limit - c.sum
	for _, e := range c.taken {
		if left += e.units; left >= units-tolerance {
			return c.after(e)
		}
	}
	return at.Add(c.policy.window)
}

// windowed counts in one window after the other.
type windowed struct {
	policy *policy
	ends   time.Time
	used   float64
}

// turn begins another window if the present one is over.
func (c *windowed) turn(at time.Time) {
	if at.Before(c.ends) {
		return
	}
	c.used, c.ends = 0, at.Add(c.policy.window)
	if c.policy.kind == aligned {
		into := time.Duration(at.Add(-c.policy.offset).UnixNano() % int64(c.policy.window))
		c.ends = at.Add(c.policy.window - into)
	}
}

func (c *windowed) left(at time.Time) float64 {
	if !at.Before(c.ends) {
		return c.policy.limit
	}
	return c.policy.limit - c.used
}

func (c *windowed) take(at time.Time, units float64) {
	c.turn(at)
	c.used += units
}

func (c *windowed) reset(at time.Time) time.Time {
	if c.policy.kind == aligned {
		c.turn(at)
	}
	if !at.Before(c.ends) {
		return at.Add(c.policy.window)
	}
	return c.ends
}

func (c *windowed) opens(at time.Time, _ float64) time.Time { return c.reset(at) }

// stock is a bucket.
type stock struct {
	policy *policy
	held   float64
	as     time.Time
}

func (c *stock) left(at time.Time) float64 {
	return min(c.policy.limit, c.held+at.Sub(c.as).Seconds()*c.policy.restore())
}

func (c *stock) take(at time.Time, units float64) {
	c.held, c.as = min(c.policy.limit, c.left(at)-units), at
}

func (c *stock) reset(at time.Time) time.Time { return c.opens(at, c.policy.limit) }

func (c *stock) opens(at time.Time, units float64) time.Time {
	missing := max(0, units-c.left(at))
	return at.Add(time.Duration(math.Ceil(missing / c.policy.restore() * float64(time.Second))))
}

// seats are calls in flight. When one ends nobody knows; in a second, say.
type seats struct {
	policy *policy
	taken  float64
}

func (c *seats) left(time.Time) float64                  { return c.policy.limit - c.taken }
func (c *seats) take(_ time.Time, units float64)         { c.taken += units }
func (c *seats) reset(at time.Time) time.Time            { return at.Add(time.Second) }
func (c *seats) opens(at time.Time, _ float64) time.Time { return at.Add(time.Second) }

// spaced is the least time between two calls.
type spaced struct {
	policy *policy
	next   time.Time
}

func (c *spaced) left(at time.Time) float64 {
	if at.Before(c.next) {
		return 0
	}
	return 1
}

func (c *spaced) take(at time.Time, _ float64)       { c.next = at.Add(c.policy.window) }
func (c *spaced) reset(time.Time) time.Time          { return c.next }
func (c *spaced) opens(time.Time, float64) time.Time { return c.next }
