package scheduler

import (
	"context"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

// Survey is a pass over the entities that are not due yet, in the order of their due times
// (adaptive mode only). It is needed because a due time depends on the price at which it was
// computed, and does not change when the price falls. A tick that leaves budget unused reads the
// next entities of the pass. It sets earlier due times for entities whose interval has become
// shorter. If these entities use the whole budget, the pass pauses.
//
// A pass begins when the price has fallen by a tenth since the start of the last pass, or after
// surveyInterval. The second condition finds new entities: they were scheduled by the interval of
// their tier, and their adaptive interval may be shorter. With batches of 500, a million entities
// take 2,000 ticks.
type Survey struct {
	after time.Time // the pass has read the entities that are due until this time; zero means that no pass is running
	began time.Time
	price float64 // price at the start of the last pass
}

const (
	// surveyBatch is the number of entities that one tick of a pass reads.
	surveyBatch = 500
	// surveyInterval is the maximum time between the starts of two passes.
	surveyInterval = time.Hour
	// A new pass begins if the price has fallen to surveyPriceRatio of the price at the start of
	// the last pass.
	surveyPriceRatio = 0.9
)

// Begin starts a pass if no pass is running and a new one is needed. `running` reports whether a pass
// is running. The pass continues with the entities that are due after the time `after`.
func (v *Survey) Begin(price float64, now time.Time) (after time.Time, running bool) {
	if v.after.IsZero() && (v.began.IsZero() || price <= surveyPriceRatio*v.price || now.Sub(v.began) >= surveyInterval) {
		*v = Survey{after: now, began: now, price: price}
	}
	return v.after, !v.after.IsZero()
}

// Advance records that the pass has read all entities that are due until the time `to`. A zero time
// ends the pass.
func (v *Survey) Advance(to time.Time) { v.after = to }

// continueSurvey reads one batch of a pass and sets earlier due times. `more` is true if the pass
// continues in the next tick.
func (s *Scheduler) continueSurvey(ctx context.Context, now time.Time) (more bool, err error) {
	after, running := s.survey.Begin(s.price.Value(), now)
	if !running || !s.adaptive() {
		return false, nil
	}
	all, err := bounded(ctx, func(ctx context.Context) ([]prefetched.Candidate, error) {
		return s.store.EntitiesDueAfter(ctx, s.source, after, surveyBatch, s.NeedsContent)
	})
	if err != nil {
		return false, err
	}
	var forward []prefetched.DueTime
	for _, c := range all {
		if p := s.policies[c.Entity.Facet]; p != nil {
			if due, earlier := p.EarlierDue(c, now); earlier {
				forward = append(forward, prefetched.DueTime{Entity: c.Entity, At: due})
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

// EarlierDue computes a new due time at the current price for an entity that is not due yet (adaptive
// mode only). `earlier` is true if the new due time is earlier than the stored one by more than a
// tenth of the interval. The new due time is never within the entity's cool-down. An entity that was
// never checked nor requested becomes due at once.
func (p *Policy) EarlierDue(c prefetched.Candidate, now time.Time) (due time.Time, earlier bool) {
	if p.config.Mode != Adaptive || c.Status.State != "" || !p.config.Active.allows(c) || p.ContentNotReady(now) {
		return time.Time{}, false
	}
	hash := hashEntity(c.Entity)
	_, activity := p.updateHistory(c, now)
	p.price.observeEarly(hash, observation{policy: p, seen: activity, at: now})
	checked := notAfter(c.State.CheckedAt, now)
	from := checked
	// If the entity was claimed after its last check, the interval begins at the claim.
	if claimed := notAfter(c.History.ClaimedAt, now); claimed.After(from) {
		from = claimed
	}
	if from.IsZero() {
		due = later(now, now)
		return due, due.Before(c.Due)
	}
	every := p.intervalOf(c.Tier, activity, c.State)
	due = p.due.jitteredAfter(hash, every, from, from)
	if free := p.cooldownEnd(c, checked); !checked.IsZero() && due.Before(free) {
		due = p.due.jitteredAfter(hash, p.config.Jitter, free, free)
	}
	due = later(due, now)
	return due, c.Due.Sub(due) > every/10
}

// notAfter returns t, or now if t is later than now.
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
