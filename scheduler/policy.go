package scheduler

import (
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Policy decides on the entities of one facet. Its methods may be called concurrently.
type Policy struct {
	config Config
	clock  *workClock
	cost   float64
	price  *Price
}

// NewPolicy returns the policy of a facet, or all mistakes in its configuration. cost is the number
// of calls of one refresh. All facets of a source share one price.
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

// ContentNotReady reports whether now is before the not-before time, when no entity of the facet is
// due.
func (p *Policy) ContentNotReady(now time.Time) bool {
	_, _, waits := p.clock.notReady(now)
	return waits
}

// FirstDue returns the first due time of an entity that is registered now.
func (p *Policy) FirstDue(e schemas.Entity, tier store.Tier, now time.Time) time.Time {
	c, every := hashEntity(e), p.tier(tier).Every
	s := p.scale(every)
	return later(s.at(p.jittered(c, c.slot(s.of(now), every)), every), now)
}

// Reasons for which a due entity is not enqueued; values of the label reason of
// prefetch_skipped_total.
const (
	skipFresh    = "fresh"     // it was checked recently
	skipHeld     = "held"      // it is held after a failure
	skipInactive = "inactive"  // it is disabled or not active
	skipNotReady = "not-ready" // the content of the day is not ready
	skipOff      = "off"       // the facet is not prefetched
)

// Next decides on a due entity.
func (p *Policy) Next(c store.Candidate, now time.Time) store.Decision {
	decision, _ := p.judge(c, now)
	return decision
}

// judge decides on a due entity. skipped is the reason if it is not enqueued.
func (p *Policy) judge(c store.Candidate, now time.Time) (decision store.Decision, skipped string) {
	hash := hashEntity(c.Entity)
	checked := notAfter(c.State.CheckedAt, now)
	history, activity := p.updateHistory(c, now)
	decision = store.Decision{Tier: p.tierByReads(c.RegisteredEntity, activity), History: c.History}
	every := p.intervalOf(decision.Tier, activity, c.State)
	if p.ContentNotReady(now) {
		decision.Tier, decision.Due = c.Tier, later(p.dueWhenReady(hash, now), now)
		return decision, skipNotReady
	}
	active := c.Enabled && p.config.Active.allows(c)
	if active && c.Status.State == "" {
		if due, early := p.tooEarly(c, hash, every, checked, now); early {
			decision.Tier = c.Tier // the history is updated only with an enqueued request
			decision.Due = later(due, now)
			return decision, skipFresh
		}
	}
	decision.Due = p.nextDue(hash, every, now)
	switch {
	case !active: // checked at long intervals, because it may become active again
		decision.Due, decision.Tier = p.nextDue(hash, max(every, p.config.Tiers.Cold.Every), now), c.Tier
		return decision, skipInactive
	case c.Status.State == store.Suspended:
		decision.Tier = c.Tier
		return decision, skipHeld
	case c.Status.State == store.Retrying:
		// The retry refreshes the entity. This due time is later, in case the retry is lost.
		decision.Due, decision.Tier = p.dueAfterFailure(hash, c.Status, c.Status.Rounds, every, now), c.Tier
		return decision, skipHeld
	case c.Status.State != "" && c.Status.Until.After(now):
		decision.Due, decision.Tier = p.dueAfterFailure(hash, c.Status, c.Status.Failures, every, now), c.Tier
		return decision, skipHeld
	}
	decision.Enqueue, decision.History = true, history
	if p.config.Mode == Adaptive && c.History.ClaimedAt.IsZero() {
		decision.Due = p.secondDue(hash, every, now)
	}
	if c.Status.State == "" && p.config.Mode == Adaptive {
		p.observe(hash, activity, checked, c.Due, now)
	}
	return decision, ""
}

// tooEarly reports whether an entity was checked too recently for a refresh, and its new due time.
func (p *Policy) tooEarly(c store.Candidate, hash entityHash, every time.Duration, checked, now time.Time) (time.Time, bool) {
	if checked.IsZero() {
		return time.Time{}, false
	}
	free := p.cooldownEnd(c, checked)
	s := p.scale(every)
	if now.Sub(checked) < 2*maxInterval && s.of(now)-s.of(checked) < every/2 {
		due := p.slotAfterCheck(hash, every, checked)
		if p.config.Mode == Adaptive {
			due = p.jitteredAfter(hash, every, checked, checked)
		}
		if due.Before(free) {
			due = p.jitteredAfter(hash, p.config.Jitter, free, now)
		}
		return due, true
	}
	if now.Before(free) {
		return p.jitteredAfter(hash, p.config.Jitter, free, now), true
	}
	return time.Time{}, false
}

// cooldownEnd returns the end of an entity's cool-down. The reason of the request that led to the
// check selects the cool-down (schemas.Reason.Manual).
func (p *Policy) cooldownEnd(c store.Candidate, checked time.Time) time.Time {
	if c.State.Manual {
		return checked.Add(p.config.Cooldown.Manual)
	}
	return checked.Add(p.config.Cooldown.Automatic)
}

// dueWhenReady returns the due time of an entity that is claimed before the day's content is ready:
// within ten minutes of the ready time. It is overdue since the day before. Its slot of this day
// could be at the end of an overfull day, and then it would be delayed again every day.
func (p *Policy) dueWhenReady(c entityHash, now time.Time) time.Time {
	_, ready, _ := p.clock.notReady(now)
	return ready.Add(time.Duration(c.fraction(ready.Unix()) * float64(10*time.Minute)))
}

// nextDue returns the due time after a claim at now.
func (p *Policy) nextDue(c entityHash, every time.Duration, now time.Time) time.Time {
	if p.config.Mode == Adaptive {
		return later(p.jitteredAfter(c, every, now, now), now)
	}
	return later(p.nextSlot(c, every, now), now)
}

// secondDue returns the due time after the first fetch: a pseudo-random part of the interval. New
// entities that are fetched within minutes have equal intervals, and would otherwise all be due
// again at the same time.
func (p *Policy) secondDue(c entityHash, every time.Duration, now time.Time) time.Time {
	part := time.Duration(c.fraction(now.UnixNano()) * float64(every))
	return later(p.jitteredAfter(c, max(part, p.config.MinInterval), now, now), now)
}

// jitteredAfter returns the moment one interval after from, earlier or later by up to a twentieth
// of it. So entities with equal due times spread over time.
func (p *Policy) jitteredAfter(c entityHash, about time.Duration, from, salt time.Time) time.Time {
	s := timeScale{p.clock, p.config.Mode != Adaptive}
	step := time.Duration(float64(about) * (0.95 + 0.1*c.fraction(salt.UnixNano())))
	return s.at(s.of(from)+step, max(about, time.Hour))
}

// dueAfterFailure returns the due time of an entity that is held after a failure: after the hold,
// plus a backoff that doubles with each failure. During a hold that is longer than the interval,
// the entity is due once in each interval, because an operator may end the hold.
func (p *Policy) dueAfterFailure(c entityHash, status store.Status, failures int, every time.Duration, now time.Time) time.Time {
	until := status.Until
	if until.Before(now) {
		until = now
	}
	wait := min(p.config.Backoff<<min(max(failures, 0), 20), every)
	if wait <= 0 {
		wait = every
	}
	regular := p.nextDue(c, max(every, p.config.Tiers.Cold.Every), now)
	if until.Sub(now) > p.maxInterval() {
		return regular
	}
	if due := p.jitteredAfter(c, wait, until, now); due.Before(regular) {
		return later(due, now)
	}
	return regular
}

// maxInterval returns the longest interval of the mode.
func (p *Policy) maxInterval() time.Duration {
	if p.config.Mode == Adaptive {
		return p.config.MaxInterval
	}
	return p.config.Tiers.Cold.Every
}

// later returns due, or now plus one second if due is earlier.
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
