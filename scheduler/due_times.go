package scheduler

import "time"

// dueTimes computes the due times of one facet's entities from their hashes and intervals. Equal
// arguments give equal due times in each process. Its methods may be called concurrently.
type dueTimes struct {
	clock       *workClock
	adaptive    bool          // the mode of the facet is Adaptive
	jitter      time.Duration // Config.Jitter
	minInterval time.Duration // Config.MinInterval
}

func newDueTimes(c Config, clock *workClock) dueTimes {
	return dueTimes{clock: clock, adaptive: c.Mode == Adaptive, jitter: c.Jitter, minInterval: c.MinInterval}
}

// scale returns the scale on which the interval `every` is measured.
func (d dueTimes) scale(every time.Duration) timeScale {
	return timeScale{d.clock, !d.adaptive && every < wholeDay-time.Duration(d.clock.notBefore)*time.Minute}
}

// first returns the first due time of an entity that is registered now.
func (d dueTimes) first(c entityHash, every time.Duration, now time.Time) time.Time {
	s := d.scale(every)
	return later(s.at(d.jittered(c, c.slot(s.of(now), every)), every), now)
}

// whenReady returns the new due time of an entity that is due before the day's content is ready:
// within ten minutes after the ready time. It does not return the entity's regular due time of the day
// (its slot), because this may be at 23:59. If the budget is used up then, the entity is still due at
// midnight, when the next day's content is not ready. So it would be delayed to 23:59 again, every day.
func (d dueTimes) whenReady(c entityHash, now time.Time) time.Time {
	_, ready, _ := d.clock.notReady(now)
	return ready.Add(time.Duration(c.fraction(ready.Unix()) * float64(10*time.Minute)))
}

// next returns the next due time of an entity that is claimed now: in the mode "adaptive" about
// one interval later, in the mode "tiers" the entity's next regular due time (slot).
func (d dueTimes) next(c entityHash, every time.Duration, now time.Time) time.Time {
	if d.adaptive {
		return later(d.jitteredAfter(c, every, now, now), now)
	}
	return later(d.nextSlot(c, every, now), now)
}

// second returns the due time after the first fetch of an entity: after a pseudo-random part of the
// interval. If many new entities with equal intervals are fetched at about the same time, their next
// due times are spread in this way.
func (d dueTimes) second(c entityHash, every time.Duration, now time.Time) time.Time {
	part := time.Duration(c.fraction(now.UnixNano()) * float64(every))
	return later(d.jitteredAfter(c, max(part, d.minInterval), now, now), now)
}

// jitteredAfter returns the time `from` plus the duration `about`, which is changed by a pseudo-random
// amount of up to 5 %. So entities with equal due times are spread over time. The amount depends on
// the entity and on the time `salt`.
func (d dueTimes) jitteredAfter(c entityHash, about time.Duration, from, salt time.Time) time.Time {
	s := timeScale{d.clock, !d.adaptive}
	step := time.Duration(float64(about) * (0.95 + 0.1*c.fraction(salt.UnixNano())))
	return s.at(s.of(from)+step, max(about, time.Hour))
}

// jittered adds a pseudo-random delay of at most Config.Jitter to a position.
func (d dueTimes) jittered(c entityHash, place time.Duration) time.Duration {
	return place + time.Duration(c.fraction(int64(place)^1)*float64(d.jitter))
}

// nextSlot returns the time of the entity's next slot (regular due time) after a claim at `now`. It
// skips a slot that is less than a third of the interval after `now`.
func (d dueTimes) nextSlot(c entityHash, every time.Duration, now time.Time) time.Time {
	s := d.scale(every)
	return s.at(d.jittered(c, c.slot(s.of(now)+every/3, every)), every)
}

// slotAfterCheck returns the due time of an entity that was checked between two of its slots
// (regular due times), for example for a reader. It takes the first slot that is at least half an
// interval after the check. If that slot plus its jitter can be more than one interval after the
// check, slotAfterCheck returns the middle between the check and the slot.
func (d dueTimes) slotAfterCheck(c entityHash, every time.Duration, checked time.Time) time.Time {
	s := d.scale(every)
	from := s.of(checked)
	slot := c.slot(from+every/2, every)
	if slot-from > every-d.jitter {
		return s.at(from+max((slot-from)/2, every/2), every)
	}
	return s.at(d.jittered(c, slot), every)
}

// later returns the time `due`, but at least one second after now.
func later(due, now time.Time) time.Time {
	if soonest := now.Add(time.Second); due.Before(soonest) {
		return soonest
	}
	return due
}
