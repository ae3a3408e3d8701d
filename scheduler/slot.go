package scheduler

import (
	"math/bits"
	"time"

	"github.com/freshet/freshet/schemas"
)

// entityHash is a hash of an entity. The scheduler derives pseudo-random numbers from it, so that
// each process computes the same numbers for the same entity.
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

// mix is the finalizer of SplitMix64: each input bit affects all output bits.
func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// fraction returns a pseudo-random number from 0 to 1 (exclusive). It depends only on the entity
// and n.
func (c entityHash) fraction(n int64) float64 {
	return float64(mix(uint64(c)^mix(bits.Reverse64(uint64(n))))>>11) / (1 << 53) //nolint:gosec // a negative n also gives a valid number
}

// timeScale converts between times and positions on a scale on which intervals are measured.
// Usually the scale is work (see workClock), so that the due times follow the rate caps. In plain
// mode it is normal time. Plain mode is used for tiers with an interval that is shorter than the
// time from notBefore to midnight. Measured in work, an interval of one hour would last
// longer than an hour in the evening.
type timeScale struct {
	*workClock
	plain bool
}

func (s timeScale) of(t time.Time) time.Duration {
	if s.plain {
		return time.Duration(t.UnixNano())
	}
	return s.workAt(t)
}

// at returns the time of a position on the scale. In plain mode that time may be between midnight
// and the ready time of the content (the waiting period). Then the time is moved into the first
// interval after the ready time, in proportion to its position in the waiting period. So the moved
// due times of several entities stay spread. If the interval is shorter than the waiting period, the
// time is moved by whole intervals instead, so that the entity keeps its slots.
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

// slot returns the position of the entity's first slot after a position on the scale. A slot is a
// regular due time: there is one in each interval, at an offset that depends on the entity's hash.
func (c entityHash) slot(after, every time.Duration) time.Duration {
	phase := time.Duration(c.fraction(int64(every)) * float64(every))
	return phase + wholeIntervals(after-phase, every) + every
}

// wholeIntervals rounds t down to a multiple of the interval `every`.
func wholeIntervals(t, every time.Duration) time.Duration { return t - t%every }
