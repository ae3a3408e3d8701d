package scheduler

import (
	"math/bits"
	"time"

	"github.com/freshet/freshet/schemas"
)

// entityHash is what is random about an entity, and always the same.
type entityHash uint64

func hashEntity(e schemas.Entity) entityHash {
	h := uint64(14695981039346656037)
	for _, s := range [3]string{e.Source, e.Facet, e.Key} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return entityHash(mix(h))
}

// mix spreads a difference in any bit over all of them.
func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// fraction returns the chance's n-th number from 0 to 1, without 1.
func (c entityHash) fraction(n int64) float64 {
	return float64(mix(uint64(c)^mix(bits.Reverse64(uint64(n))))>>11) / (1 << 53) //nolint:gosec // any bits will do
}

// timeScale is how the time of an interval is measured: in work, so that a day is a day and
// what is due follows what may be spent; but a tier's interval that fits into what a day
// has after its not-before time in plain time, or its hour would not be one in the evening.
type timeScale struct {
	*workClock
	plain bool
}

func (p *Policy) scale(every time.Duration) timeScale {
	return timeScale{p.clock, p.config.Mode != Adaptive && every < wholeDay-time.Duration(p.config.NotBefore)*time.Minute}
}

func (s timeScale) of(t time.Time) time.Duration {
	if s.plain {
		return time.Duration(t.UnixNano())
	}
	return s.workAt(t)
}

// at returns the moment of a place on the scale. In plain time it may fall where the
// content is not ready: then by where in that span it fell it is put somewhere within
// the next interval, so that not all of them come at once. Where the interval is shorter
// than the span, that is its own next slot.
func (s timeScale) at(place, every time.Duration) time.Time {
	if !s.plain {
		return s.timeAt(place)
	}
	t := time.Unix(0, int64(place))
	from, to, waits := s.notReady(t)
	if !waits {
		return t
	}
	if span := to.Sub(from); every > span {
		return to.Add(time.Duration(float64(every) * float64(t.Sub(from)) / float64(span)))
	}
	return t.Add(wholeIntervals(to.Sub(t)+every-1, every))
}

// slot returns the first slot of an entity on the scale that is later than a place. The
// slots of an interval lie at a phase of the entity's own.
func (c entityHash) slot(after, every time.Duration) time.Duration {
	phase := time.Duration(c.fraction(int64(every)) * float64(every))
	return phase + wholeIntervals(after-phase, every) + every
}

// wholeIntervals returns as much of a time as whole intervals fill.
func wholeIntervals(t, every time.Duration) time.Duration { return t - t%every }

// jittered returns a place on the scale somewhat later.
func (p *Policy) jittered(c entityHash, place time.Duration) time.Duration {
	return place + time.Duration(c.fraction(int64(place)^1)*float64(p.config.Jitter))
}

// nextSlot returns the slot to which an entity comes that was claimed now: not its next one
// if that is too near.
func (p *Policy) nextSlot(c entityHash, every time.Duration, now time.Time) time.Time {
	s := p.scale(every)
	return s.at(p.jittered(c, c.slot(s.of(now)+every/3, every)), every)
}

// slotAfterCheck returns when an entity comes round that was checked out of turn: in its slot if
// that is at least half an interval and at most one later, otherwise half way to it.
func (p *Policy) slotAfterCheck(c entityHash, every time.Duration, checked time.Time) time.Time {
	s := p.scale(every)
	from := s.of(checked)
	slot := c.slot(from+every/2, every)
	if slot-from > every-p.config.Jitter {
		return s.at(from+max((slot-from)/2, every/2), every)
	}
	return s.at(p.jittered(c, slot), every)
}
