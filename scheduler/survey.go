package scheduler

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// Survey is a pass over the entities that are due later. A due time holds the price of the
// moment at which it was planned: when the price falls, the due times don't. So a tick that
// leaves budget unused looks at the next entities, in the order of their due times, and
// brings those forward whose interval has become shorter. The requests for these entities use the
// budget, and so end the pass for the time being.
//
// A pass begins when the price has fallen by a tenth since the last one began, and otherwise
// after surveyEvery: entities that were registered meanwhile may come earlier than their tier
// says. 300 entities take one step, a million take 2,000.
type Survey struct {
	after time.Time // due times up to here have been looked at; zero: no pass is under way
	began time.Time
	price float64 // when it began
}

const (
	// surveyBatch is how many entities one tick looks at.
	surveyBatch = 500
	// surveyInterval is how long after the last pass one begins at the latest.
	surveyInterval = time.Hour
	// surveyPriceRatio is the part of its price at which a new pass begins.
	surveyPriceRatio = 0.9
)

// Begin reports whether a pass is under way, or begins now, and behind which due time it
// goes on.
func (v *Survey) Begin(price float64, now time.Time) (after time.Time, underWay bool) {
	if v.after.IsZero() && (v.began.IsZero() || price <= surveyPriceRatio*v.price || now.Sub(v.began) >= surveyInterval) {
		*v = Survey{after: now, began: now, price: price}
	}
	return v.after, !v.after.IsZero()
}

// Advance says up to which due time the pass has come; zero: to the end.
func (v *Survey) Advance(to time.Time) { v.after = to }

// continueSurvey takes the next step of the pass; more: it goes on at the next tick.
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

// EarlierDue returns when an entity that is not due yet should come by the present price, if
// that is earlier than planned by more than a tenth of its interval. It is never earlier than
// its cool-down allows. Only the adaptive mode plans by a price. An entity that was never
// fetched comes at once.
func (p *Policy) EarlierDue(c store.Candidate, now time.Time) (due time.Time, earlier bool) {
	if p.config.Mode != Adaptive || c.Status.State != "" || !p.config.Active.allows(c) || p.ContentNotReady(now) {
		return time.Time{}, false
	}
	chance := hashEntity(c.Entity)
	_, seen := p.updateHistory(c, now)
	p.price.observeEarly(chance, observation{policy: p, seen: seen, at: now})
	checked := notAfter(c.State.CheckedAt, now)
	from := checked
	if claimed := notAfter(c.History.ClaimedAt, now); claimed.After(from) { // its request is on its way
		from = claimed
	}
	if from.IsZero() {
		due = later(now, now)
		return due, due.Before(c.Due)
	}
	every := p.intervalOf(c.Tier, seen, c.State)
	due = p.jitteredAfter(chance, every, from, from)
	if free := p.cooldownEnd(c, checked); !checked.IsZero() && due.Before(free) {
		due = p.jitteredAfter(chance, p.config.Jitter, free, free)
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

// adaptive reports whether any facet is planned by the price.
func (s *Schedule) adaptive() bool {
	for _, p := range s.policies {
		if p.config.Mode == Adaptive {
			return true
		}
	}
	return false
}
