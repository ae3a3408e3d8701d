package scheduler

import (
	"math"
	"sync"
	"time"
)

// Price is the minimum value of a call in the adaptive mode, shared by all facets of a source. Its
// unit is the number of reads that return current instead of outdated content because of the call.
// Its methods may be called concurrently.
//
// Waiting for the effect of a price would take as long as the longest interval, and oscillate.
// Instead Price keeps a sample of the entities, chosen by hash, and computes the demand of all
// entities at any price. So it reacts to a changed budget at once. The sample does not know the
// refreshes by readers, and has a sampling error. A slowly changing scale, driven by the backlog
// and the idle budget, corrects both.
type Price struct {
	mu    sync.Mutex
	price float64
	scale float64
	// sample holds the last observation of each entity whose hash is below limit.
	sample    map[entityHash]observation
	limit     uint64
	complete  bool // the sample holds every entity whose hash is below limit
	startedAt time.Time
	at        time.Time
}

// observation is the state of an entity at its last request.
type observation struct {
	policy *Policy
	seen   activity
	passed float64 // days of work since the check before
	at     time.Time
}

// Load is the input of Price.Adjust.
type Load struct {
	// PerDay is how many calls the scheduler may make in a day, with the rate caps and the daily
	// quota.
	PerDay float64
	// Backlog is how long the due entities take at the current rate.
	Backlog time.Duration
	// Unused is the part of the budget since the last adjustment that was not used because no
	// entity was due; 0 while the content is not ready.
	Unused float64
	// Share is this scheduler's part of all requests: 1 if no other scheduler runs.
	Share float64
}

const (
	sampleSize = 2048
	minSample  = 64 // observations; with fewer, the maximum step is smaller in proportion
	minPrice   = 1e-9
	maxPrice   = 1e9
	tolerance  = 1e-9 // relative difference of two equal sums
	// maxStep is the maximum change of the logarithm of the price in one adjustment.
	maxStep = 0.25
	// maxFall is the maximum fall of that logarithm if no budget is used. A too low price costs
	// little then, because the survey finds the delayed entities and the sample knows the demand.
	maxFall = 2.5
	// A backlog below backlogSlack has no effect. At fullBacklog the part backlogShare of the
	// budget is reserved to reduce it. That part is small on purpose: entities that a high price
	// delays are all due at the same time days later.
	backlogSlack = 2 * time.Minute
	fullBacklog  = 6 * time.Hour
	backlogShare = 0.2
	// scaleRate is the maximum change of the logarithm of the scale in a day; a higher one
	// oscillates. The scale falls at that rate if the part idleThreshold of the budget is idle. It
	// rises at that rate if the backlog reaches 1/backlogGain of fullBacklog. maxScale bounds it on
	// both sides.
	scaleRate     = 0.1
	backlogGain   = 12
	idleThreshold = 0.2
	maxScale      = 2
	// minElasticity is the minimum assumed effect of the price on the demand. If all intervals are
	// at a bound, the real effect is 0.
	minElasticity = 0.2
)

// initialPrice is the price of a new source: a check must prevent a tenth of an outdated read.
const initialPrice = 0.1

// NewPrice returns the initial price of a source.
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

// Adopt sets the price that another scheduler of the source has computed.
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

// observeEarly records an entity before it is due. It keeps the recorded time between the last two
// checks.
func (p *Price) observeEarly(c entityHash, s observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.passed = p.sample[c].passed
	p.add(c, s)
}

// MarkComplete records that observeEarly was called for every entity. Each one in the sample then
// represents only itself.
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

// Adjust moves the price towards the one at which the demand equals the budget. It is called every
// few minutes.
func (p *Price) Adjust(l Load, now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	passed := math.Min(math.Max(now.Sub(p.at).Hours()/24, 0), 0.01)
	p.at = now
	for c, s := range p.sample { // no longer observed: it was removed from the schedule
		if now.Sub(s.at) > 2*s.policy.config.MaxInterval {
			delete(p.sample, c)
		}
	}
	if len(p.sample) < sampleSize/4 && p.limit < math.MaxUint64/2 { // most entities were removed
		p.limit, p.startedAt, p.complete = 2*p.limit, now, false
	}
	if len(p.sample) == 0 || !(l.PerDay > 0) {
		return
	}
	lookedOn := math.Max(now.Sub(p.startedAt).Hours()/24, 1e-3) * math.Min(math.Max(l.Share, 1e-3), 1)
	idle := math.Min(math.Max(0, (l.Unused-idleThreshold)/(1-idleThreshold)), 1)
	rise := maxStep * math.Min(1, float64(len(p.sample))/minSample)
	fall := rise + (maxFall-rise)*idle
	calls, callsAtE := p.demand(p.price, lookedOn), p.demand(p.price*math.E, lookedOn)
	// If all intervals are at a bound, a change of the price has no effect.
	atMax, atMin := calls >= p.demand(minPrice, lookedOn)*(1-tolerance), calls <= p.demand(maxPrice, lookedOn)*(1+tolerance)
	backlog := math.Min(math.Max(0, (l.Backlog-backlogSlack).Seconds())/fullBacklog.Seconds(), 1)
	idleShare := math.Min(math.Max(l.Unused/idleThreshold, 0), 1)
	if atMax { // the idle budget can't be used
		idleShare = 0
	}
	p.scale *= math.Exp(scaleRate * passed * (math.Min(backlogGain*backlog, 1) - idleShare))
	p.scale = math.Min(math.Max(p.scale, 1.0/maxScale), maxScale)

	target := l.PerDay * (1 - backlogShare*backlog) / p.scale
	step := math.Log(calls/target) / math.Max(math.Log(calls/callsAtE), minElasticity)
	if step < 0 && atMax || step > 0 && atMin {
		return
	}
	p.price *= math.Exp(math.Min(math.Max(step, -fall), rise))
	p.price = math.Min(math.Max(p.price, minPrice), maxPrice)
}

// demand returns how many calls a day all entities take at a price. An entity whose time between
// checks exceeds lookedOn, the time of observation in days, represents several entities that were
// not observed yet.
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
