package scheduler

import (
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Policy decides for the due entities of one facet whether they are requested, and when they are
// due next. Its methods may be called concurrently.
type Policy struct {
	config Config
	clock  *workClock
	due    dueTimes
	cost   float64
	price  *Price
}

// NewPolicy returns the policy of a facet. `cost` is the number of calls of one refresh, and `price`
// is the Price that all facets of a source share. The error joins all mistakes in the configuration.
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
	return &Policy{config: config, clock: c, due: newDueTimes(config, c), cost: float64(max(1, cost)), price: price}, nil
}

// ContentNotReady reports whether now is earlier than notBefore of the same day. Until notBefore no
// entity of the facet is due.
func (p *Policy) ContentNotReady(now time.Time) bool {
	_, _, waits := p.clock.notReady(now)
	return waits
}

// FirstDue returns the first due time of an entity that is registered now.
func (p *Policy) FirstDue(e schemas.Entity, tier prefetched.Tier, now time.Time) time.Time {
	return p.due.first(hashEntity(e), p.tier(tier).Every, now)
}

// Reasons for which a due entity is not enqueued; values of the label reason of
// prefetch_skipped_total.
const (
	skipFresh    = "fresh"     // the entity was checked recently
	skipHeld     = "held"      // the entity is held after a failure
	skipInactive = "inactive"  // the entity is disabled, or the rule Active excludes it
	skipNotReady = "not-ready" // the time of day is before the facet's notBefore
	skipOff      = "off"       // the facet is not prefetched
)

// Next decides whether a due entity is enqueued, and returns its next due time.
func (p *Policy) Next(c prefetched.Candidate, now time.Time) prefetched.Decision {
	decision, _ := p.judge(c, now)
	return decision
}

// judge does the work of Next. If the entity is not enqueued, skipped is the reason.
func (p *Policy) judge(c prefetched.Candidate, now time.Time) (decision prefetched.Decision, skipped string) {
	hash := hashEntity(c.Entity)
	checked := notAfter(c.State.CheckedAt, now)
	history, activity := p.updateHistory(c, now)
	decision = prefetched.Decision{Tier: p.tierByReads(c.RegisteredEntity, activity), History: c.History}
	every := p.intervalOf(decision.Tier, activity, c.State)
	if p.ContentNotReady(now) {
		decision.Tier, decision.Due = c.Tier, later(p.due.whenReady(hash, now), now)
		return decision, skipNotReady
	}
	active := c.Enabled && p.config.Active.allows(c)
	if active && c.Status.State == "" {
		if due, early := p.tooEarly(c, hash, every, checked, now); early {
			decision.Tier = c.Tier // the entity is not requested, so its tier does not change
			decision.Due = later(due, now)
			return decision, skipFresh
		}
	}
	decision.Due = p.due.next(hash, every, now)
	switch {
	case !active: // due again after a long interval, because the entity may have become active by then
		decision.Due, decision.Tier = p.due.next(hash, max(every, p.config.Tiers.Cold.Every), now), c.Tier
		return decision, skipInactive
	case c.Status.State == store.Suspended:
		decision.Tier = c.Tier
		return decision, skipHeld
	case c.Status.State == store.Retrying:
		// A failed request of the entity will be retried, and the retry refreshes the entity. The
		// new due time follows the time of the retry, and matters only if the retry is lost.
		decision.Due, decision.Tier = p.dueAfterFailure(hash, c.Status, c.Status.Rounds, every, now), c.Tier
		return decision, skipHeld
	case c.Status.State != "" && c.Status.Until.After(now):
		decision.Due, decision.Tier = p.dueAfterFailure(hash, c.Status, c.Status.Failures, every, now), c.Tier
		return decision, skipHeld
	}
	decision.Enqueue, decision.History = true, history
	if p.config.Mode == Adaptive && c.History.ClaimedAt.IsZero() {
		decision.Due = p.due.second(hash, every, now)
	}
	if c.Status.State == "" && p.config.Mode == Adaptive {
		p.observe(hash, activity, checked, c.Due, now)
	}
	return decision, ""
}

// tooEarly reports whether an entity must not be refreshed yet because of its last check, and
// returns its new due time.
func (p *Policy) tooEarly(c prefetched.Candidate, hash entityHash, every time.Duration, checked, now time.Time) (time.Time, bool) {
	if checked.IsZero() {
		return time.Time{}, false
	}
	free := p.cooldownEnd(c, checked)
	s := p.due.scale(every)
	if now.Sub(checked) < 2*maxInterval && s.of(now)-s.of(checked) < every/2 {
		due := p.due.slotAfterCheck(hash, every, checked)
		if p.config.Mode == Adaptive {
			due = p.due.jitteredAfter(hash, every, checked, checked)
		}
		if due.Before(free) {
			due = p.due.jitteredAfter(hash, p.config.Jitter, free, now)
		}
		return due, true
	}
	if now.Before(free) {
		return p.due.jitteredAfter(hash, p.config.Jitter, free, now), true
	}
	return time.Time{}, false
}

// cooldownEnd returns the end of the cool-down of an entity that was checked at a time. The
// cool-down depends on whether that check was manual (schemas.Reason.Manual).
func (p *Policy) cooldownEnd(c prefetched.Candidate, checked time.Time) time.Time {
	if c.State.Manual {
		return checked.Add(p.config.Cooldown.Manual)
	}
	return checked.Add(p.config.Cooldown.Automatic)
}

// dueAfterFailure returns the due time of an entity that is held after a failure. It is the end of
// the hold plus a backoff, which doubles with each failure. If the hold is longer than the longest
// interval, the entity stays due once in each interval, because an operator may end the hold.
func (p *Policy) dueAfterFailure(c entityHash, status store.Status, failures int, every time.Duration, now time.Time) time.Time {
	until := status.Until
	if until.Before(now) {
		until = now
	}
	wait := min(p.config.Backoff<<min(max(failures, 0), 20), every)
	if wait <= 0 {
		wait = every
	}
	regular := p.due.next(c, max(every, p.config.Tiers.Cold.Every), now)
	if until.Sub(now) > p.maxInterval() {
		return regular
	}
	if due := p.due.jitteredAfter(c, wait, until, now); due.Before(regular) {
		return later(due, now)
	}
	return regular
}

// maxInterval returns the longest possible interval in the mode of the facet.
func (p *Policy) maxInterval() time.Duration {
	if p.config.Mode == Adaptive {
		return p.config.MaxInterval
	}
	return p.config.Tiers.Cold.Every
}

func (p *Policy) tier(t prefetched.Tier) Tier {
	switch t {
	case prefetched.Hot:
		return p.config.Tiers.Hot
	case prefetched.Warm:
		return p.config.Tiers.Warm
	default:
		return p.config.Tiers.Cold
	}
}
