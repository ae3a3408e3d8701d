package scheduler

import (
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Policy says what becomes of the entities of one facet. Its methods may be called
// concurrently.
type Policy struct {
	config Config
	clock  *workClock
	cost   float64
	price  *Price
}

// NewPolicy returns the policy of a facet, or all mistakes in its settings. Cost is how many
// calls one refresh takes. The price is that of the source, one for all its facets.
func NewPolicy(config Config, spending BudgetConfig, cost int, price *Price) (*Policy, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	if err := spending.Check(); err != nil {
		return nil, err
	}
	c, err := newWorkClock(config, spending)
	if err != nil {
		return nil, err
	}
	return &Policy{config: config, clock: c, cost: float64(max(1, cost)), price: price}, nil
}

// ContentNotReady reports whether nothing of the facet is due now, since its content is not ready.
func (p *Policy) ContentNotReady(now time.Time) bool {
	_, _, waits := p.clock.notReady(now)
	return waits
}

// FirstDue returns when an entity is due that is registered now.
func (p *Policy) FirstDue(e schemas.Entity, tier store.Tier, now time.Time) time.Time {
	c, every := hashEntity(e), p.tier(tier).Every
	s := p.scale(every)
	return later(s.at(p.jittered(c, c.slot(s.of(now), every)), every), now)
}

// Why an entity is left alone.
const (
	skipFresh    = "fresh"     // it was checked a moment ago
	skipHeld     = "held"      // a failure holds it
	skipInactive = "inactive"  // it was taken out, or is not active
	skipNotReady = "not-ready" // the day's content is not ready
	skipOff      = "off"       // its facet is not prefetched
)

// Next returns what becomes of an entity that is due.
func (p *Policy) Next(c store.Candidate, now time.Time) store.Decision {
	move, _ := p.judge(c, now)
	return move
}

// judge returns what becomes of an entity that is due, and why if it is left alone.
func (p *Policy) judge(c store.Candidate, now time.Time) (move store.Decision, why string) {
	chance := hashEntity(c.Entity)
	checked := notAfter(c.State.CheckedAt, now)
	history, seen := p.updateHistory(c, now)
	move = store.Decision{Tier: p.tierByReads(c.RegisteredEntity, seen), History: c.History}
	every := p.intervalOf(move.Tier, seen, c.State)
	if p.ContentNotReady(now) { // it is late, from the day before
		move.Tier, move.Due = c.Tier, later(p.dueWhenReady(chance, now), now)
		return move, skipNotReady
	}
	active := c.Enabled && p.config.Active.allows(c)
	if active && c.Status.State == "" {
		if due, early := p.tooEarly(c, chance, every, checked, now); early {
			move.Tier = c.Tier // its history is looked at when it is asked for
			move.Due = later(due, now)
			return move, skipFresh
		}
	}
	move.Due = p.nextDue(chance, every, now)
	switch {
	case !active: // it is looked at now and then, should it come back
		move.Due, move.Tier = p.nextDue(chance, max(every, p.config.Tiers.Cold.Every), now), c.Tier
		return move, skipInactive
	case c.Status.State == store.Suspended:
		move.Tier = c.Tier
		return move, skipHeld
	case c.Status.State == store.Retrying:
		// The retry is its refresh. Should it be lost, this one comes after it.
		move.Due, move.Tier = p.dueAfterFailure(chance, c.Status, c.Status.Rounds, every, now), c.Tier
		return move, skipHeld
	case c.Status.State != "" && c.Status.Until.After(now):
		move.Due, move.Tier = p.dueAfterFailure(chance, c.Status, c.Status.Failures, every, now), c.Tier
		return move, skipHeld
	}
	move.Enqueue, move.History = true, history
	if p.config.Mode == Adaptive && c.History.ClaimedAt.IsZero() {
		move.Due = p.secondDue(chance, every, now)
	}
	if c.Status.State == "" && p.config.Mode == Adaptive {
		p.observe(chance, seen, checked, c.Due, now)
	}
	return move, ""
}

// tooEarly reports whether an entity was checked too recently to be asked for, and when
// it is due instead.
func (p *Policy) tooEarly(c store.Candidate, chance entityHash, every time.Duration, checked, now time.Time) (time.Time, bool) {
	if checked.IsZero() {
		return time.Time{}, false
	}
	free := p.cooldownEnd(c, checked)
	s := p.scale(every)
	if now.Sub(checked) < 2*maxInterval && s.of(now)-s.of(checked) < every/2 {
		due := p.slotAfterCheck(chance, every, checked)
		if p.config.Mode == Adaptive {
			due = p.jitteredAfter(chance, every, checked, checked)
		}
		if due.Before(free) {
			due = p.jitteredAfter(chance, p.config.Jitter, free, now)
		}
		return due, true
	}
	if now.Before(free) {
		return p.jitteredAfter(chance, p.config.Jitter, free, now), true
	}
	return time.Time{}, false
}

// cooldownEnd returns when the cool-down of an entity ends that was checked then. Which one holds
// depends on the request that led to the check (schemas.Reason.Manual).
func (p *Policy) cooldownEnd(c store.Candidate, checked time.Time) time.Time {
	if c.State.Manual {
		return checked.Add(p.config.Cooldown.Manual)
	}
	return checked.Add(p.config.Cooldown.Automatic)
}

// dueWhenReady returns when an entity comes that is claimed while the day's content is not
// ready: soon after it is. It has waited since the day before; put in its slot of this
// day, at the end of a day that is too full it would be put off again, and for ever.
func (p *Policy) dueWhenReady(c entityHash, now time.Time) time.Time {
	_, ready, _ := p.clock.notReady(now)
	return ready.Add(time.Duration(c.fraction(ready.Unix()) * float64(10*time.Minute)))
}

// nextDue returns when an entity is due that is claimed now.
func (p *Policy) nextDue(c entityHash, every time.Duration, now time.Time) time.Time {
	if p.config.Mode == Adaptive {
		return later(p.jitteredAfter(c, every, now, now), now)
	}
	return later(p.nextSlot(c, every, now), now)
}

// secondDue returns when an entity is due that is claimed for the first time: after a part of its
// interval, by chance. Entities that are fetched first within minutes, and of which nothing is
// known, all have one interval. Without this they would all be due again at its end.
func (p *Policy) secondDue(c entityHash, every time.Duration, now time.Time) time.Time {
	part := time.Duration(c.fraction(now.UnixNano()) * float64(every))
	return later(p.jitteredAfter(c, max(part, p.config.MinInterval), now, now), now)
}

// jitteredAfter returns a moment about an interval from another one, up to a twentieth earlier
// or later by chance: what once began together does not stay together.
func (p *Policy) jitteredAfter(c entityHash, about time.Duration, from, salt time.Time) time.Time {
	s := timeScale{p.clock, p.config.Mode != Adaptive}
	step := time.Duration(float64(about) * (0.95 + 0.1*c.fraction(salt.UnixNano())))
	return s.at(s.of(from)+step, max(about, time.Hour))
}

// dueAfterFailure returns when an entity is due whose failure holds it: after the hold, by a
// back-off that doubles with each failure. A hold that is longer than an interval is
// looked at again in each, since a person may lift it.
func (p *Policy) dueAfterFailure(c entityHash, status store.Status, failures int, every time.Duration, now time.Time) time.Time {
	until := status.Until
	if until.Before(now) {
		until = now
	}
	wait := min(p.config.Backoff<<min(max(failures, 0), 20), every)
	if wait <= 0 {
		wait = every
	}
	seen := p.nextDue(c, max(every, p.config.Tiers.Cold.Every), now)
	if until.Sub(now) > p.maxInterval() {
		return seen
	}
	if due := p.jitteredAfter(c, wait, until, now); due.Before(seen) {
		return later(due, now)
	}
	return seen
}

// maxInterval is the longest interval of the mode.
func (p *Policy) maxInterval() time.Duration {
	if p.config.Mode == Adaptive {
		return p.config.MaxInterval
	}
	return p.config.Tiers.Cold.Every
}

// later returns due, or a moment somewhat later than now if due is not.
func later(due, now time.Time) time.Time {
	if soonest := now.Add(time.Second); due.Before(soonest) {
		return soonest
	}
	return due
}

func (p *Policy) tier(t store.Tier) Tier {
	switch t {
	case store.Hot:
		return p.config.Tiers.Hot
	case store.Warm:
		return p.config.Tiers.Warm
	default:
		return p.config.Tiers.Cold
	}
}
