package scheduler

import (
	"math"
	"sync"
	"time"
)

// Price is what a call must be worth in the adaptive mode, one for all facets of a
// source. Its methods may be called concurrently.
//
// It is not found by waiting for what a price brings about: that takes as long as the
// longest intervals, and swings. A sample of the entities is kept, chosen by hash, and
// asked how often all of them would come at another price; so a budget that changes is
// answered at once. What the sample can't know (what readers refresh, its own chance) is
// made up for by a scale that follows, slowly, what is behind and what is not used.
type Price struct {
	mu    sync.Mutex
	price float64
	scale float64
	// sample holds the entities whose chance is below limit, as they were last seen.
	sample map[chance]sighting
	limit  uint64
	whole  bool // the sample holds every entity whose chance is below limit
	begun  time.Time
	at     time.Time
}

// sighting is what was known of an entity when it was asked for last.
type sighting struct {
	policy *Policy
	seen   seen
	passed float64 // days of work since its check before
	at     time.Time
}

// Load is how it stands with a source.
type Load struct {
	// PerDay is how many calls the scheduler may make in a day, the hours' rate caps and
	// the day's pace in it.
	PerDay float64
	// Behind is how long what is due now would take at the rate of now.
	Behind time.Duration
	// Unused is the part of the calls that could have been asked for since the last time
	// and were not, as nothing was due; 0 while the content is not ready.
	Unused float64
	// Share is the part of all asks that this scheduler makes: 1 if there is no other.
	Share float64
}

const (
	sampled   = 2048
	enough    = 64 // sightings; with fewer, a look moves the price by that much less
	leastCost = 1e-9
	mostCost  = 1e9
	rounding  = 1e-9 // part by which two sums of the same demand may differ
	// move is the most by which one look changes the logarithm of the price.
	move = 0.25
	// plunge is the most by which it falls where nothing of the budget is used. Overshoot
	// costs little then: a survey finds the entities that were put off, and the sample has the demand.
	plunge = 2.5
	// slack may be behind without a reason to hurry. With drain behind, so much of the
	// budget is left to work it off as hurried says. It is little on purpose: who is put
	// off for days by a high price comes back, days later, all at once.
	slack   = 2 * time.Minute
	drain   = 6 * time.Hour
	hurried = 0.2
	// follow is by how much the logarithm of the scale changes in a day at most: where it
	// follows faster, it swings. It does so from a part of plenty on that is not used, or from
	// a part of 1/eager of the hurry on. furthest is how far the scale goes.
	follow   = 0.1
	eager    = 12
	plenty   = 0.2
	furthest = 2
	// stiff is the least by which demand is taken to answer to the price: where all
	// intervals are at their bounds it does not, and no price would be high enough.
	stiff = 0.2
)

// firstPrice is that of a source of which nothing has been seen: a check is worth it that
// keeps about a tenth of a read from seeing the past.
const firstPrice = 0.1

// NewPrice returns the price of a source.
func NewPrice() *Price {
	return &Price{price: firstPrice, scale: 1, sample: map[chance]sighting{}, limit: math.MaxUint64}
}

// Value returns the price.
func (p *Price) Value() float64 {
	if p == nil {
		return firstPrice
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.price
}

// Adopt takes the price that another scheduler of the source has found.
func (p *Price) Adopt(price float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.price = math.Min(math.Max(price, leastCost), mostCost)
}

func (p *Price) saw(c chance, s sighting) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(c, s)
}

// surveyed notes an entity before it is due. The time between its last checks remains as it
// was noted.
func (p *Price) surveyed(c chance, s sighting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.passed = p.sample[c].passed
	p.keep(c, s)
}

// Surveyed says that surveyed was told of every entity: each in the sample stands for itself.
func (p *Price) Surveyed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole = true
}

func (p *Price) keep(c chance, s sighting) {
	if p.begun.IsZero() {
		p.begun = s.at
	}
	if uint64(c) > p.limit {
		return
	}
	p.sample[c] = s
	for len(p.sample) > sampled {
		p.limit /= 2
		for c := range p.sample {
			if uint64(c) > p.limit {
				delete(p.sample, c)
			}
		}
	}
}

// Adjust moves the price towards the one at which what is due is what may be asked for.
// It is called every few minutes.
func (p *Price) Adjust(l Load, now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	passed := math.Min(math.Max(now.Sub(p.at).Hours()/24, 0), 0.01)
	p.at = now
	for c, s := range p.sample { // who does not come any more has been taken out
		if now.Sub(s.at) > 2*s.policy.config.Most {
			delete(p.sample, c)
		}
	}
	if len(p.sample) < sampled/4 && p.limit < math.MaxUint64/2 { // most of them went
		p.limit, p.begun, p.whole = 2*p.limit, now, false
	}
	if len(p.sample) == 0 || !(l.PerDay > 0) {
		return
	}
	seen := math.Max(now.Sub(p.begun).Hours()/24, 1e-3) * math.Min(math.Max(l.Share, 1e-3), 1)
	idle := math.Min(math.Max(0, (l.Unused-plenty)/(1-plenty)), 1)
	rise := move * math.Min(1, float64(len(p.sample))/enough)
	fall := rise + (plunge-rise)*idle
	calls, dearer := p.demand(p.price, seen), p.demand(p.price*math.E, seen)
	// At a bound of all intervals no other price changes anything.
	most, least := calls >= p.demand(leastCost, seen)*(1-rounding), calls <= p.demand(mostCost, seen)*(1+rounding)
	hurry := math.Min(math.Max(0, (l.Behind-slack).Seconds())/drain.Seconds(), 1)
	wasted := math.Min(math.Max(l.Unused/plenty, 0), 1)
	if most { // what is unused can't be used
		wasted = 0
	}
	p.scale *= math.Exp(follow * passed * (math.Min(eager*hurry, 1) - wasted))
	p.scale = math.Min(math.Max(p.scale, 1.0/furthest), furthest)

	target := l.PerDay * (1 - hurried*hurry) / p.scale
	step := math.Log(calls/target) / math.Max(math.Log(calls/dearer), stiff)
	if step < 0 && most || step > 0 && least {
		return
	}
	p.price *= math.Exp(math.Min(math.Max(step, -fall), rise))
	p.price = math.Min(math.Max(p.price, leastCost), mostCost)
}

// demand returns how many calls a day all entities would take at a price. Who comes after
// a longer time than has been looked on for stands for as many as have not come yet.
func (p *Price) demand(price, lookedOn float64) float64 {
	sum := 0.0
	for _, s := range p.sample {
		weight := 1.0
		if !p.whole {
			weight = math.Max(1, s.passed/lookedOn)
		}
		sum += weight * s.policy.cost / s.policy.days(s.seen, price)
	}
	return sum / (float64(p.limit) / math.MaxUint64)
}
