package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

// Facet is the prefetch configuration of a facet, and the number of calls that its refreshes take.
type Facet struct {
	Config Config
	// Cost is the number of calls of a refresh. FirstCost is the number of calls of an entity's first
	// refresh, with the calls of the facets that it takes params from. 0 means Cost.
	Cost, FirstCost int
}

// Schedule holds the policies of one source's facets. Its methods may be called concurrently.
type Schedule struct {
	spending BudgetConfig
	price    *Price
	policies map[string]*Policy // the policy of each facet, by its name; a facet with the mode off has no policy
	cost     map[string]facetCost
	maxCost  float64 // the highest cost of any facet
	zone     *time.Location
}

// facetCost is the number of calls of a refresh, and of the first refresh of an entity.
type facetCost struct{ refresh, first float64 }

// NewSchedule returns the schedule of a source. The error joins all mistakes in the configuration.
func NewSchedule(spending BudgetConfig, facets map[string]Facet) (*Schedule, error) {
	s := &Schedule{spending: spending, price: NewPrice(), policies: map[string]*Policy{}, cost: map[string]facetCost{}, maxCost: 1}
	errs := []error{spending.Check()}
	// facetCost has the number of calls of a refresh, and of an entity's first refresh.
	if zone, err := time.LoadLocation(spending.TimeZone); err == nil {
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
		cost := facetCost{p.cost, max(p.cost, float64(f.FirstCost))}
		s.policies[name], s.cost[name] = p, cost
		s.maxCost = max(s.maxCost, cost.first)
	}
	errs = append(errs, CheckTriggers(triggers))
	return s, errors.Join(errs...)
}

// WithPriceOf makes s use the Price of another schedule of the same source, and returns s. So the
// price survives a change of the configuration.
func (s *Schedule) WithPriceOf(other *Schedule) *Schedule {
	s.price = other.price
	for _, p := range s.policies {
		p.price = other.price
	}
	return s
}

// within puts a name at the start of each line of an error.
func within(name string, err error) error {
	var errs []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		errs = append(errs, fmt.Errorf("%s.%s", name, line))
	}
	return errors.Join(errs...)
}

// Prefetches reports whether the facet is prefetched.
func (s *Schedule) Prefetches(facet string) bool { return s.policies[facet] != nil }

// RateCap returns the prefetch rate cap at a time, in calls a second. `there` is false if no cap
// applies.
func (s *Schedule) RateCap(now time.Time) (perSecond float64, there bool) {
	rate := s.spending.at(now.In(s.zone).Hour())
	return rate, rate < unlimitedRate
}

// ContentReadyAt returns the time at which the day's content of a facet becomes ready (notBefore);
// zero if it is ready now.
func (s *Schedule) ContentReadyAt(facet string, now time.Time) time.Time {
	if p, ok := s.policies[facet]; ok {
		if _, until, waits := p.clock.notReady(now); waits {
			return until
		}
	}
	return time.Time{}
}

// FirstDue returns the first due time of an entity that is registered now, and whether its facet is
// prefetched.
func (s *Schedule) FirstDue(r prefetched.RegisteredEntity, now time.Time) (time.Time, bool) {
	p, ok := s.policies[r.Entity.Facet]
	if !ok {
		return time.Time{}, false
	}
	return p.FirstDue(r.Entity, r.Tier, now), true
}

// ReadsMakeDue reports whether an entity becomes due at once because its number of reads has risen
// from `before` to `after`.
func (s *Schedule) ReadsMakeDue(r prefetched.RegisteredEntity, before, after float64) bool {
	p, ok := s.policies[r.Entity.Facet]
	return ok && p.readsMakeDue(r, before, after)
}

// NeedsContent reports whether the decisions on entities of the facet depend on their stored
// content.
func (s *Schedule) NeedsContent(facet string) bool {
	p, ok := s.policies[facet]
	return ok && p.config.Active.needsContent()
}

// notPrefetched is the time after which an entity is due again if its facet is not prefetched, or
// is missing in the configuration.
const notPrefetched = 24 * time.Hour

// next decides on a due entity. If the entity is not enqueued, the second result is the reason
// (skipOff etc.).
func (s *Schedule) next(c prefetched.Candidate, now time.Time) (prefetched.Decision, string) {
	p, ok := s.policies[c.Entity.Facet]
	if !ok {
		return prefetched.Decision{Due: now.Add(notPrefetched), Tier: c.Tier, History: c.History}, skipOff
	}
	return p.judge(c, now)
}

// costOf returns how many upstream calls the requests take together. The call for an alias that has
// expired since the last refresh is not included.
func (s *Schedule) costOf(requests []prefetched.ClaimedRequest) (sum float64) {
	for _, a := range requests {
		cost := s.cost[a.Entity.Facet]
		if a.Version == 0 {
			sum += max(1, cost.first)
			continue
		}
		sum += max(1, cost.refresh)
	}
	return sum
}

// contentNotReady compares `now` with the setting notBefore of each prefetched facet. The result
// `some` is true if `now` is too early for at least one facet, and `all` is true if `now` is too early
// for every facet.
func (s *Schedule) contentNotReady(now time.Time) (some, all bool) {
	all = len(s.policies) > 0
	for _, p := range s.policies {
		waits := p.ContentNotReady(now)
		some, all = some || waits, all && waits
	}
	return some, all
}

// perDay returns how many calls the scheduler may enqueue in the next 24 hours, if LOW may make
// lowRate calls a second. An hour that is before the NotBefore of all facets adds 0 calls.
func (s *Schedule) perDay(lowRate float64, now time.Time) (sum float64) {
	for hour := range 24 {
		at := now.Add(time.Duration(hour) * time.Hour)
		if _, all := s.contentNotReady(at); !all {
			sum += 3600 * min(s.spending.at(at.In(s.zone).Hour()), lowRate)
		}
	}
	return sum
}
