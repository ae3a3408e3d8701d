package scheduler

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// Survey is a pass over the entities that are not due yet. A due time depends on the price at which
// it was planned, and does not change when the price falls. So a tick that leaves budget unused
// reads the next entities in due order. It moves those forward whose interval has become shorter.
// Their requests use the budget, which pauses the pass.
//
// A pass begins when the price has fallen by a tenth since the start of the last pass, or after
// surveyInterval. The latter finds new entities whose interval is shorter than their tier's. 300
// entities take one step, a million take 2,000.
type Survey struct {
	after time.Time // entities that are due until this time are done; zero: no pass is running
	began time.Time
	price float64 // at the start of the pass
}

const (
	// surveyBatch is the number of entities that one tick reads.
	surveyBatch = 500
	// surveyInterval is the maximum time between the starts of two passes.
	surveyInterval = time.Hour
	// surveyPriceRatio is the ratio of the prices at which a new pass begins.
	surveyPriceRatio = 0.9
)

// Begin starts a pass if one is needed. It reports whether a pass is running, and after which due
// time it continues.
func (v *Survey) Begin(price float64, now time.Time) (after time.Time, underWay bool) {
	if v.after.IsZero() && (v.began.IsZero() || price <= surveyPriceRatio*v.price || now.Sub(v.began) >= surveyInterval) {
		*v = Survey{after: now, began: now, price: price}
	}
	return v.after, !v.after.IsZero()
}

// Advance sets the due time up to which the pass has come; zero ends the pass.
func (v *Survey) Advance(to time.Time) { v.after = to }

// continueSurvey takes the next step of the pass, and reports whether it continues in the next
// tick.
func (s *Scheduler) continueSurvey(ctx context.Context, now time.Time) (more bool, err error) {
	after, underWay := s.survey.Begin(s.price.Value(), now)
	if !underWay || !s.adaptive() {
		return false, nil
	}
	all, err := bounded(ctx, func(ctx context.Context) ([]store.Candidate, error) {
		return s.store.EntitiesDueAfter(ctx, s.source, after, surveyBatch, s.NeedsContent)
	})
	if err != nil {
		return false, err
	}
	var forward []store.DueTime
	for _, c := range all {
		if p := s.policies[c.Entity.Facet]; p != nil {
			if due, earlier := p.EarlierDue(c, now); earlier {
				forward = append(forward, store.DueTime{Entity: c.Entity, At: due})
			}
		}
	}
	if len(forward) > 0 {
		_, err := bounded(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.store.BringForward(ctx, forward) })
		if err != nil {
			return false, err
		}
		s.metrics.broughtForward.Add(float64(len(forward)))
	}
	if len(all) < surveyBatch {
		s.survey.Advance(time.Time{})
		s.price.MarkComplete()
		return false, nil
	}
	s.survey.Advance(all[len(all)-1].Due)
	return true, nil
}

// EarlierDue returns a new due time for an entity that is not due yet. earlier is true if it
// precedes the planned one by more than a tenth of the interval. It respects the cool-down. Only
// the adaptive mode plans by a price. An entity that was never fetched is due at once.
func (p *Policy) EarlierDue(c store.Candidate, now time.Time) (due time.Time, earlier bool) {
	if p.config.Mode != Adaptive || c.Status.State != "" || !p.config.Active.allows(c) || p.ContentNotReady(now) {
		return time.Time{}, false
	}
	hash := hashEntity(c.Entity)
	_, activity := p.updateHistory(c, now)
	p.price.observeEarly(hash, observation{policy: p, seen: activity, at: now})
	checked := notAfter(c.State.CheckedAt, now)
	from := checked
	if claimed := notAfter(c.History.ClaimedAt, now); claimed.After(from) { // its request is in flight
		from = claimed
	}
	if from.IsZero() {
		due = later(now, now)
		return due, due.Before(c.Due)
	}
	every := p.intervalOf(c.Tier, activity, c.State)
	due = p.jitteredAfter(hash, every, from, from)
	if free := p.cooldownEnd(c, checked); !checked.IsZero() && due.Before(free) {
		due = p.jitteredAfter(hash, p.config.Jitter, free, free)
	}
	due = later(due, now)
	return due, c.Due.Sub(due) > every/10
}

// notAfter returns the earlier of two times.
func notAfter(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

// adaptive reports whether any facet is in the adaptive mode.
func (s *Schedule) adaptive() bool {
	for _, p := range s.policies {
		if p.config.Mode == Adaptive {
			return true
		}
	}
	return false
}
