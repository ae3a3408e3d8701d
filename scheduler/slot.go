package scheduler

import (
	"math/bits"
	"time"

	"github.com/freshet/freshet/schemas"
)

// entityHash is a hash of an entity. It replaces random numbers, so that the result for an entity
// is always the same.
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

// fraction returns the n-th pseudo-random number of the entity, 0 to 1 exclusive.
func (c entityHash) fraction(n int64) float64 {
	return float64(mix(uint64(c)^mix(bits.Reverse64(uint64(n))))>>11) / (1 << 53) //nolint:gosec // any bits will do
}

// timeScale maps moments to places on a scale, on which intervals are measured. The scale is work
// (workClock), so that due times follow the rate caps, or plain time. Plain time is used for the
// tiers whose interval fits between the not-before time and midnight: with work an hour would be
// longer than an hour in the evening.
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

// at returns the moment of a place on the scale. In plain time the moment may be before the content
// is ready. Then it is moved into the first interval after the ready time, in proportion to its
// position in the waiting period. So due times do not pile up. An interval that is shorter than the
// waiting period keeps its own slots.
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

// slot returns the entity's first slot after a place on the scale. The slots of an interval have a
// phase that depends on the entity.
func (c entityHash) slot(after, every time.Duration) time.Duration {
	phase := time.Duration(c.fraction(int64(every)) * float64(every))
	return phase + wholeIntervals(after-phase, every) + every
}

// wholeIntervals rounds t down to a multiple of every.
func wholeIntervals(t, every time.Duration) time.Duration { return t - t%every }

// jittered returns a place plus a pseudo-random part of the jitter.
func (p *Policy) jittered(c entityHash, place time.Duration) time.Duration {
	return place + time.Duration(c.fraction(int64(place)^1)*float64(p.config.Jitter))
}

// nextSlot returns the slot after a claim at now. It skips a slot that is less than a third of the
// interval away.
func (p *Policy) nextSlot(c entityHash, every time.Duration, now time.Time) time.Time {
	s := p.scale(every)
	return s.at(p.jittered(c, c.slot(s.of(now)+every/3, every)), every)
}

// slotAfterCheck returns the due time of an entity that was checked outside its schedule. It is the
// entity's slot if that is half an interval to one interval after the check, and otherwise half the
// time to it.
func (p *Policy) slotAfterCheck(c entityHash, every time.Duration, checked time.Time) time.Time {
	s := p.scale(every)
	from := s.of(checked)
	slot := c.slot(from+every/2, every)
	if slot-from > every-p.config.Jitter {
		return s.at(from+max((slot-from)/2, every/2), every)
	}
	return s.at(p.jittered(c, slot), every)
}
