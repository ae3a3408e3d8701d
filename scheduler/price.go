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
	sample    map[entityHash]observation
	limit     uint64
	complete  bool // the sample holds every entity whose chance is below limit
	startedAt time.Time
	at        time.Time
}

// observation is what was known of an entity when it was asked for last.
type observation struct {
	policy *Policy
	seen   activity
	passed float64 // days of work since its check before
	at     time.Time
}

// Load is how it stands with a source.
type Load struct {
	// PerDay is how many calls the scheduler may make in a day, the hours' rate caps and
	// the day's pace in it.
	PerDay float64
	// Backlog is how long what is due now would take at the rate of now.
	Backlog time.Duration
	// Unused is the part of the calls that could have been asked for since the last time
	// and were not, as nothing was due; 0 while the content is not ready.
	Unused float64
	// Share is the part of all asks that this scheduler makes: 1 if there is no other.
	Share float64
}

const (
	sampleSize = 2048
	minSample  = 64 // sightings; with fewer, a look moves the price by that much less
	minPrice   = 1e-9
	maxPrice   = 1e9
	tolerance  = 1e-9 // part by which two sums of the same demand may differ
	// maxStep is the most by which one look changes the logarithm of the price.
	maxStep = 0.25
	// maxFall is the most by which it falls where nothing of the budget is used. Overshoot
	// costs little then: a survey finds the entities that were put off, and the sample has the demand.
	maxFall = 2.5
	// backlogSlack may be behind without a reason to hurry. With drain behind, so much of the
	// budget is left to work it off as hurried says. It is little on purpose: who is put
	// off for days by a high price comes back, days later, all at once.
	backlogSlack = 2 * time.Minute
	fullBacklog  = 6 * time.Hour
	backlogShare = 0.2
	// scaleRate is by how much the logarithm of the scale changes in a day at most: where it
	// follows faster, it swings. It does so from a part of plenty on that is not used, or from
	// a part of 1/eager of the hurry on. furthest is how far the scale goes.
	scaleRate     = 0.1
	backlogGain   = 12
	idleThreshold = 0.2
	maxScale      = 2
	// minElasticity is the least by which demand is taken to answer to the price: where all
	// intervals are at their bounds it does not, and no price would be high enough.
	minElasticity = 0.2
)

// initialPrice is that of a source of which nothing has been seen: a check is worth it that
// keeps about a tenth of a read from seeing the past.
const initialPrice = 0.1

// NewPrice returns the price of a source.
func NewPrice() *Price {
	return &Price{price: initialPrice, scale: 1, sample: map[entityHash]observation{}, limit: math.MaxUint64}
}

// Value returns the price.
func (p *Price) Value() float64 {
	if p == nil {
		return initialPrice
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.price
}

// Adopt takes the price that another scheduler of the source has found.
func (p *Price) Adopt(price float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.price = math.Min(math.Max(price, minPrice), maxPrice)
}

func (p *Price) observe(c entityHash, s observation) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(c, s)
}

// observeEarly notes an entity before it is due. The time between its last checks remains as it
// was noted.
func (p *Price) observeEarly(c entityHash, s observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.passed = p.sample[c].passed
	p.add(c, s)
}

// MarkComplete says that surveyed was told of every entity: each in the sample stands for itself.
func (p *Price) MarkComplete() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete = true
}

func (p *Price) add(c entityHash, s observation) {
	if p.startedAt.IsZero() {
		p.startedAt = s.at
	}
	if uint64(c) > p.limit {
		return
	}
	p.sample[c] = s
	for len(p.sample) > sampleSize {
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
		if now.Sub(s.at) > 2*s.policy.config.MaxInterval {
			delete(p.sample, c)
		}
	}
	if len(p.sample) < sampleSize/4 && p.limit < math.MaxUint64/2 { // most of them went
		p.limit, p.startedAt, p.complete = 2*p.limit, now, false
	}
	if len(p.sample) == 0 || !(l.PerDay > 0) {
		return
	}
	seen := math.Max(now.Sub(p.startedAt).Hours()/24, 1e-3) * math.Min(math.Max(l.Share, 1e-3), 1)
	idle := math.Min(math.Max(0, (l.Unused-idleThreshold)/(1-idleThreshold)), 1)
	rise := maxStep * math.Min(1, float64(len(p.sample))/minSample)
	fall := rise + (maxFall-rise)*idle
	calls, dearer := p.demand(p.price, seen), p.demand(p.price*math.E, seen)
	// At a bound of all intervals no other price changes anything.
	most, least := calls >= p.demand(minPrice, seen)*(1-tolerance), calls <= p.demand(maxPrice, seen)*(1+tolerance)
	hurry := math.Min(math.Max(0, (l.Backlog-backlogSlack).Seconds())/fullBacklog.Seconds(), 1)
	wasted := math.Min(math.Max(l.Unused/idleThreshold, 0), 1)
	if most { // what is unused can't be used
		wasted = 0
	}
	p.scale *= math.Exp(scaleRate * passed * (math.Min(backlogGain*hurry, 1) - wasted))
	p.scale = math.Min(math.Max(p.scale, 1.0/maxScale), maxScale)

	target := l.PerDay * (1 - backlogShare*hurry) / p.scale
	step := math.Log(calls/target) / math.Max(math.Log(calls/dearer), minElasticity)
	if step < 0 && most || step > 0 && least {
		return
	}
	p.price *= math.Exp(math.Min(math.Max(step, -fall), rise))
	p.price = math.Min(math.Max(p.price, minPrice), maxPrice)
}

// demand returns how many calls a day all entities would take at a price. Who comes after
// a longer time than has been looked on for stands for as many as have not come yet.
func (p *Price) demand(price, lookedOn float64) float64 {
	sum := 0.0
	for _, s := range p.sample {
		weight := 1.0
		if !p.complete {
			weight = math.Max(1, s.passed/lookedOn)
		}
		sum += weight * s.policy.cost / s.policy.adaptiveDays(s.seen, price)
	}
	return sum / (float64(p.limit) / math.MaxUint64)
}
