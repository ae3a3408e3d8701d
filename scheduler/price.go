package scheduler

import (
	"math"
	"sync"
	"time"
)

// Price is the number of outdated reads that a call must prevent to be worth making (adaptive
// mode). A higher price makes intervals longer. All facets of a source share one Price. Its methods
// may be called concurrently.
//
// A control loop that waits for the effect of a changed price would oscillate, because the effect
// takes as long as the longest interval. Instead Price keeps a sample of the entities, chosen by
// hash. From the sample it computes the demand (the calls a day of all entities) at any price, and
// so it reacts to a changed budget at once. The demand has two errors: the sample ignores refreshes
// that readers request, and it is only a sample. The factor "scale" corrects both errors. It changes
// slowly: a backlog raises it, and idle budget lowers it.
type Price struct {
	mu    sync.Mutex
	price float64
	scale float64
	// sample contains the last observation of each entity whose hash is at most `limit`.
	sample    map[entityHash]observation
	limit     uint64
	complete  bool // true if every registered entity whose hash is at most limit is in the sample
	startedAt time.Time
	at        time.Time
}

// observation is the activity of an entity when it was last requested or read by the Survey.
type observation struct {
	policy *Policy
	seen   activity
	passed float64 // days of work (see workClock) between the last two checks
	at     time.Time
}

// Load describes how busy the scheduler is. Price.Adjust raises or lowers the price according to it.
type Load struct {
	// PerDay is how many calls the scheduler may make in a day, as limited by the rate caps and the
	// daily quota.
	PerDay float64
	// Backlog is the time by which the scheduler is behind: the age of the earliest due time.
	Backlog time.Duration
	// Unused is the part (0 to 1) of the budget that was not used since the last adjustment because
	// no entity was due. It is 0 before the notBefore of a facet.
	Unused float64
	// Share is the part of the source's requests that this scheduler makes: 1 if no other scheduler
	// runs.
	Share float64
}

const (
	sampleSize = 2048
	minSample  = 64 // minimum number of observations in the sample for a step of maxStep; with fewer, the step is smaller
	minPrice   = 1e-9
	maxPrice   = 1e9
	tolerance  = 1e-9 // two demands count as equal if their relative difference is at most this
	// maxStep is the maximum change of ln(price) in one adjustment.
	maxStep = 0.25
	// maxFall is the maximum decrease of ln(price) in one adjustment if no budget is used. A fast
	// fall is safe then: if the price becomes too low, only idle budget is used, and the next
	// adjustments compute the true demand from the sample.
	maxFall = 2.5
	// A backlog shorter than backlogSlack has no effect. For a backlog of fullBacklog or more, the
	// part backlogShare of the budget is reserved to reduce the backlog. That part is small on
	// purpose. A larger part would raise the price and so delay many entities at once. All of them
	// would then be due at the same time some days later.
	backlogSlack = 2 * time.Minute
	fullBacklog  = 6 * time.Hour
	backlogShare = 0.2
	// scaleRate is the maximum change of ln(scale) in a day, where scale is the factor by which
	// Price corrects the computed demand. At a higher rate the price would oscillate. The scale
	// falls by scaleRate a day if at least 20 % of the budget (idleThreshold) is idle. It rises by
	// scaleRate a day at a backlog of half an hour (fullBacklog/backlogGain). It is always between
	// 1/maxScale and maxScale.
	scaleRate     = 0.1
	backlogGain   = 12
	idleThreshold = 0.2
	maxScale      = 2
	// minElasticity is the minimum of the assumed decrease of ln(demand) if ln(price) rises by 1.
	// Adjust divides by that decrease. The true decrease is 0 if all intervals are at a bound.
	minElasticity = 0.2
)

// initialPrice is the price of a new source: on average, ten checks must prevent one outdated read.
const initialPrice = 0.1

// NewPrice returns a Price with the initial price and an empty sample.
func NewPrice() *Price {
	return &Price{price: initialPrice, scale: 1, sample: map[entityHash]observation{}, limit: math.MaxUint64}
}

// Value returns the current price, in prevented outdated reads per call.
func (p *Price) Value() float64 {
	if p == nil {
		return initialPrice
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.price
}

// Adopt replaces the price by the price that another scheduler of the source has computed.
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

// observeEarly adds the observation of an entity that is not due yet. It keeps the value "passed" of
// the entity's previous observation, because no interval between two checks has ended since then.
func (p *Price) observeEarly(c entityHash, s observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.passed = p.sample[c].passed
	p.add(c, s)
}

// MarkComplete records that observeEarly was called for every entity that is not due. Before this
// call, demand lets an observed entity with a long interval stand for entities that were not
// observed yet, so it counts that entity several times. Afterwards demand counts each entity of the
// sample once.
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

// Adjust changes the price so that the demand approaches the budget. It is called every few
// minutes.
func (p *Price) Adjust(l Load, now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	passed := math.Min(math.Max(now.Sub(p.at).Hours()/24, 0), 0.01)
	p.at = now
	for c, s := range p.sample { // drop entities that are not scheduled any more
		if now.Sub(s.at) > 2*s.policy.config.MaxInterval {
			delete(p.sample, c)
		}
	}
	if len(p.sample) < sampleSize/4 && p.limit < math.MaxUint64/2 { // the sample is too small: accept twice as many hashes
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
	// If all intervals have their minimum, or all have their maximum, a further change of the price has
	// no effect. So the price stays.
	atMax, atMin := calls >= p.demand(minPrice, lookedOn)*(1-tolerance), calls <= p.demand(maxPrice, lookedOn)*(1+tolerance)
	backlog := math.Min(math.Max(0, (l.Backlog-backlogSlack).Seconds())/fullBacklog.Seconds(), 1)
	idleShare := math.Min(math.Max(l.Unused/idleThreshold, 0), 1)
	if atMax { // all intervals have their minimum, so the idle budget can't be used
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

// demand returns how many calls a day all entities take at a price. `lookedOn` is the time in days for
// which the sample has been collected. Until the sample is complete, an entity counts as
// passed/lookedOn entities if its interval (passed) is longer than `lookedOn`. For example, in 1 day
// only a quarter of the entities with an interval of 4 days is due and observed; each counts as 4.
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
