package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/store"
)

// Facet is a facet as it may be prefetched, and how many calls one refresh of it takes.
type Facet struct {
	Config Config
	Cost   int
}

// Schedule is how the facets of one source are prefetched. Its methods may be called
// concurrently.
type Schedule struct {
	spending BudgetConfig
	price    *Price
	policies map[string]*Policy // of those facets that are
	cost     map[string]float64
	maxCost  float64 // of their costs
	zone     *time.Location
}

// NewSchedule returns the schedule of a source, or all mistakes in its settings.
func NewSchedule(spending BudgetConfig, facets map[string]Facet) (*Schedule, error) {
	s := &Schedule{spending: spending, price: NewPrice(), policies: map[string]*Policy{}, cost: map[string]float64{}, maxCost: 1}
	errs := []error{spending.Check()}
	if zone, err := time.LoadLocation(spending.TimeZone); err == nil { // else it was said
		s.zone = zone
	}
	triggers := map[string]Config{}
	for _, name := range slices.Sorted(maps.Keys(facets)) {
		f := facets[name]
		triggers[name] = f.Config
		if err := f.Config.Check(); err != nil {
			errs = append(errs, within("facets."+name, err))
			continue
		}
		if f.Config.Mode == Off || errs[0] != nil {
			continue
		}
		p, err := NewPolicy(f.Config, spending, f.Cost, s.price)
		if err != nil {
			errs = append(errs, within("facets."+name, err))
			continue
		}
		s.policies[name], s.cost[name] = p, p.cost
		s.maxCost = max(s.maxCost, p.cost)
	}
	errs = append(errs, CheckTriggers(triggers))
	return s, errors.Join(errs...)
}

// WithPriceOf has the schedule work with the price of another one of the same source, as when
// its settings are changed. It returns the schedule.
func (s *Schedule) WithPriceOf(other *Schedule) *Schedule {
	s.price = other.price
	for _, p := range s.policies {
		p.price = other.price
	}
	return s
}

// within puts the name of what they are in before each mistake, which is a line.
func within(name string, err error) error {
	var errs []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		errs = append(errs, fmt.Errorf("%s.%s", name, line))
	}
	return errors.Join(errs...)
}

// Prefetches reports whether entities of the facet are asked for by themselves.
func (s *Schedule) Prefetches(facet string) bool { return s.policies[facet] != nil }

// RateCap returns how many calls a second may be fed at the hour of a time; none: no rate cap
// names the hour.
func (s *Schedule) RateCap(now time.Time) (perSecond float64, there bool) {
	rate := s.spending.at(now.In(s.zone).Hour())
	return rate, rate < unlimitedRate
}

// ContentReadyAt returns until when nothing of a facet is asked for, as the day's content is not ready
// (notBefore); zero: it is.
func (s *Schedule) ContentReadyAt(facet string, now time.Time) time.Time {
	if p, ok := s.policies[facet]; ok {
		if _, until, waits := p.clock.notReady(now); waits {
			return until
		}
	}
	return time.Time{}
}

// FirstDue returns when an entity that is registered now is due first, and whether its facet
// is prefetched.
func (s *Schedule) FirstDue(r store.RegisteredEntity, now time.Time) (time.Time, bool) {
	p, ok := s.policies[r.Entity.Facet]
	if !ok {
		return time.Time{}, false
	}
	return p.FirstDue(r.Entity, r.Tier, now), true
}

// ReadsMakeDue reports whether reads are a reason to look at an entity at once (store.RefreshNowFunc).
func (s *Schedule) ReadsMakeDue(r store.RegisteredEntity, before, after float64) bool {
	p, ok := s.policies[r.Entity.Facet]
	return ok && p.readsMakeDue(r, before, after)
}

// NeedsContent reports whether what becomes of an entity of the facet depends on what is
// stored of it.
func (s *Schedule) NeedsContent(facet string) bool {
	p, ok := s.policies[facet]
	return ok && p.config.Active.needsContent()
}

// notPrefetched is how long an entity rests whose facet is not prefetched, or not by this
// configuration.
const notPrefetched = 24 * time.Hour

// next returns what becomes of an entity that is due, and why if it is left alone.
func (s *Schedule) next(c store.Candidate, now time.Time) (store.Decision, string) {
	p, ok := s.policies[c.Entity.Facet]
	if !ok {
		return store.Decision{Due: now.Add(notPrefetched), Tier: c.Tier, History: c.History}, skipOff
	}
	return p.judge(c, now)
}

// costOf returns how many calls it takes to refresh all of them.
func (s *Schedule) costOf(asks []store.ClaimedRequest) (sum float64) {
	for _, a := range asks {
		sum += max(1, s.cost[a.Entity.Facet])
	}
	return sum
}

// contentNotReady reports whether nothing is due now of any facet, and of all of them.
func (s *Schedule) contentNotReady(now time.Time) (some, all bool) {
	all = len(s.policies) > 0
	for _, p := range s.policies {
		waits := p.ContentNotReady(now)
		some, all = some || waits, all && waits
	}
	return some, all
}

// perDay returns how many calls may be fed in the day from now on, of which each second has
// room for so many: none while the content of no facet is ready.
func (s *Schedule) perDay(room float64, now time.Time) (sum float64) {
	for hour := range 24 {
		at := now.Add(time.Duration(hour) * time.Hour)
		if _, all := s.contentNotReady(at); !all {
			sum += 3600 * min(s.spending.at(at.In(s.zone).Hour()), room)
		}
	}
	return sum
}
