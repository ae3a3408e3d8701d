package main

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

var policyNames = []string{"tiers", "change age / 2", "adaptive"}

// These constants are the budget that adr-013 requires for fullEntities entities. With fewer
// entities, the budget is reduced in proportion.
const (
	dailyCalls  = 20e6
	highReserve = 25.0  // calls a second that are reserved for the HIGH lane
	maxLowRate  = 350.0 // maximum rate of the LOW lane, in calls a second
	freshFor    = 3600  // how long content is fresh after a check, in seconds
)

// simulation runs one of the policies in a world of simulated entities, second by second.
type simulation struct {
	*world
	name   string
	scale  float64
	ahead  bool
	config scheduler.BudgetConfig
	policy *scheduler.Policy
	price  *scheduler.Price
	budget *scheduler.Budget
	// dueLists has one linked list (by simEntity.next) for each second of the simulation: the
	// entities that are due in that second. Each value is the index of the list's first entity.
	dueLists     []int32
	queue        entityQueue // the entities that are due and not requested yet
	topic        []request
	usedCalls    float64 // number of calls of all lanes since midnight
	credit       float64 // number of calls that the LOW worker may make now
	halfAge      bool    // true to simulate the policy "change age / 2", which checks an entity after half of the time since its last change
	stretch, aim float64 // used only if halfAge is true; see adjustStretch
	idle         scheduler.IdleBudget
	survey       scheduler.Survey
	result       *result
}

// entityQueue is a linked list of entities (simEntity.next), without memory of its own. Its elements are
// indexes in a list of all entities.
type entityQueue struct{ head, tail, len int32 }

func (q *entityQueue) add(all []simEntity, i int32) {
	if q.tail == none {
		q.head = i
	} else {
		all[q.tail].next = i
	}
	q.tail = i
	q.len++
}

// removeFirst removes and returns the first element. The queue must not be empty.
func (q *entityQueue) removeFirst(all []simEntity) int32 {
	i := q.head
	if q.head = all[i].next; q.head == none {
		q.tail = none
	}
	q.len--
	return i
}

type request struct{ entity, at, due int32 }

func simulate(name string, n, days int, seed uint64, calls float64, ahead bool) (*result, error) {
	g := &simulation{
		world: newWorld(n, seed), name: name, scale: float64(n) / fullEntities * calls, ahead: ahead, price: scheduler.NewPrice(),
		dueLists: make([]int32, days*86400), queue: entityQueue{head: none, tail: none}, halfAge: name == policyNames[1], stretch: 1, aim: 1, result: newResult(name, n, calls),
	}
	g.config = scheduler.BudgetConfig{TimeZone: "Asia/Seoul", RateCaps: []scheduler.RateCap{{From: 19, To: 24, Rate: 150}, {Rate: 250}}}
	for i := range g.config.RateCaps {
		g.config.RateCaps[i].Rate *= limiter.Rate(g.scale)
	}
	config := scheduler.DefaultConfig()
	config.Mode, config.TimeZone, config.NotBefore = scheduler.Tiers, "Asia/Seoul", 120
	if name == "adaptive" {
		config.Mode = scheduler.Adaptive
	}
	var err error
	if g.policy, err = scheduler.NewPolicy(config, g.config, 1, g.price); err != nil {
		return nil, err
	}
	if g.budget, err = scheduler.NewBudget(g.config); err != nil {
		return nil, err
	}
	for i := range g.dueLists {
		g.dueLists[i] = none
	}
	g.register()
	for second := range int32(days * 86400) {
		if second%86400 == 0 {
			g.usedCalls = 0
		}
		if second == int32(days-1)*86400 {
			g.result.begin(second)
		}
		g.tick(second)
	}
	g.result.end(g, int32(days*86400))
	return g.result, nil
}

func entity(i int32) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: "character", Key: strconv.Itoa(int(i))}
}

// register gives each entity the tier for its read rate, a simulated history and a first due time.
func (g *simulation) register() {
	bounds := scheduler.DefaultConfig().Tiers
	for i := range int32(len(g.all)) {
		e := &g.all[i]
		tier, every := prefetched.Cold, bounds.Cold.Every
		if r := float64(e.readRate); r >= bounds.Hot.Reads {
			tier, every = prefetched.Hot, bounds.Hot.Every
		} else if r >= bounds.Warm.Reads {
			tier, every = prefetched.Warm, bounds.Warm.Every
		}
		e.tier = int8(tier)
		due := int32(g.policy.FirstDue(entity(i), tier, epoch).Sub(epoch) / time.Second)
		g.setHistory(e, min(due-int32(every/time.Second), 0))
		g.enqueueAt(i, due)
	}
}

// enqueueAt makes the entity with the index i due at a time, in seconds since epoch. An entity that is
// due after the end of the simulation is dropped.
func (g *simulation) enqueueAt(i, due int32) {
	g.all[i].due = due
	if int(due) < len(g.dueLists) {
		g.all[i].next, g.dueLists[due] = g.dueLists[due], i
	}
}

func (g *simulation) tick(second int32) {
	for i := g.dueLists[second]; i != none; {
		next := g.all[i].next
		g.all[i].next = none
		g.queue.add(g.all, i)
		i = next
	}
	g.simulateReads(second)
	now := timeAt(second)
	pace := g.pace(second)
	g.feed(second, now, pace)
	g.runWorker(second, pace)
	if second%300 == 299 {
		g.updatePrice(now, pace)
	}
}

// simulateReads simulates the reads of one second. A read of stale content refreshes the entity in
// HIGH.
func (g *simulation) simulateReads(second int32) {
	reads := g.poisson(g.reads / 86400 * readIntensity(int(second%86400)))
	for range int(reads) {
		e := &g.all[g.nextRead()]
		e.reads++
		g.result.recordRead(second, e)
		if second-e.checked > freshFor && g.usedCalls < dailyCalls*g.scale {
			g.usedCalls++
			g.result.high++
			g.check(e, second)
		}
	}
}

func (g *simulation) check(e *simEntity, second int32) {
	if second >= e.outdated {
		e.updated = second
		e.outdated = secondAfter(second, g.untilChange(e.changeRate))
	}
	e.checked = second
}

// pace returns how many calls a second the LOW lane may make, by the rule of package limiter: the
// rest of the daily quota is spread over the rest of the day. If g.ahead is set, pace allows more
// calls before the evening, because the lower rate cap of the evening would leave quota unused.
func (g *simulation) pace(second int32) float64 {
	left := float64(86400 - second%86400)
	calls := dailyCalls*g.scale - g.usedCalls - highReserve*g.scale*left
	pace := calls / left
	if g.ahead {
		high := 250 * g.scale
		evening := math.Min(left, 5*3600)
		if rest := left - evening; rest > 0 {
			// Before 02:00 no content is ready, so only the 17 h from 02:00 to 19:00 count.
			rest = math.Min(rest, 17*3600)
			pace = math.Min((calls-evening*math.Min(150*g.scale, calls/left*2))/rest, high)
		}
	}
	return math.Min(math.Max(pace, 0), maxLowRate*g.scale)
}

// feed requests the due entities that the budget allows, as a tick of the scheduler does.
func (g *simulation) feed(second int32, now time.Time, pace float64) {
	room := scheduler.Capacity{PerSecond: pace, Queued: float64(len(g.topic)), Cost: 1, Share: 1}
	if len(g.topic) > 0 {
		room.Lag = time.Duration(second-g.topic[0].at) * time.Second
	}
	may, _ := g.budget.Allowance(room, now)
	fed := 0
	for fed < may && g.queue.head != none {
		i := g.queue.removeFirst(g.all)
		e := &g.all[i]
		due := e.due
		decision := g.next(i, e, now)
		e.claimed, e.knownChange = seconds(decision.History.ClaimedAt), seconds(decision.History.UpdatedAt)
		e.changes, e.watched, e.reads = float32(decision.History.Changes), float32(decision.History.Watched.Hours()/24), float32(decision.History.Reads)
		e.tier = int8(decision.Tier)
		if !decision.Enqueue || !g.halfAge {
			g.enqueueAt(i, max(int32(math.Ceil(decision.Due.Sub(epoch).Seconds())), second+1))
		}
		if decision.Enqueue {
			g.topic = append(g.topic, request{i, second, due})
			fed++
		}
	}
	g.budget.Spend(float64(fed))
	if fed < may && g.name == "adaptive" {
		g.surveyStep(second, now)
	}
	if !g.policy.ContentNotReady(now) {
		g.idle.Record(now, g.budget.Rate(room, now), float64(fed), fed < may)
	}
}

// surveyStep continues the survey, as the scheduler does in a tick that leaves budget unused.
func (g *simulation) surveyStep(second int32, now time.Time) {
	after, running := g.survey.Begin(g.price.Value(), now)
	if !running {
		return
	}
	at := max(seconds(after), second) + 1
	for n := 0; n < 500 && int(at) < len(g.dueLists); at++ {
		i := g.dueLists[at]
		g.dueLists[at] = none
		for i != none {
			next, due := g.all[i].next, at
			if early, earlier := g.policy.EarlierDue(g.candidate(i, &g.all[i], now), now); earlier {
				due = max(seconds(early), second+1)
			}
			g.enqueueAt(i, due)
			i = next
			n++
		}
	}
	if int(at) == len(g.dueLists) {
		g.survey.Advance(time.Time{})
		g.price.MarkComplete()
		return
	}
	g.survey.Advance(timeAt(at - 1))
}

func seconds(t time.Time) int32 { return int32(t.Sub(epoch) / time.Second) }

func (g *simulation) next(i int32, e *simEntity, now time.Time) prefetched.Decision {
	c := g.candidate(i, e, now)
	if g.halfAge {
		return g.nextHalfAge(c, e, now)
	}
	return g.policy.Next(c, now)
}

func (g *simulation) candidate(i int32, e *simEntity, now time.Time) prefetched.Candidate {
	c := prefetched.Candidate{RegisteredEntity: prefetched.RegisteredEntity{
		Entity: entity(i), Tier: prefetched.Tier(e.tier), Enabled: true, Due: timeAt(e.due),
		History: prefetched.History{
			ClaimedAt: timeAt(e.claimed), UpdatedAt: timeAt(e.knownChange), Changes: float64(e.changes),
			Watched: time.Duration(float64(e.watched) * 24 * float64(time.Hour)), Reads: float64(e.reads), ReadAt: now,
		},
	}}
	c.State = store.State{Entity: c.Entity, CheckedAt: timeAt(e.checked), UpdatedAt: timeAt(e.updated)}
	return c
}

// runWorker simulates one second of the LOW worker. The worker refreshes `pace` requested entities a
// second.
func (g *simulation) runWorker(second int32, pace float64) {
	g.credit = math.Min(g.credit+pace, 5*pace+1)
	n := min(len(g.topic), int(g.credit))
	for _, a := range g.topic[:n] {
		g.usedCalls++
		g.result.recordRefresh(second, a, &g.all[a.entity])
		g.check(&g.all[a.entity], second)
		if g.halfAge {
			g.enqueueAt(a.entity, max(g.halfAgeDue(&g.all[a.entity], second), second+1))
		}
	}
	g.credit -= float64(n)
	if g.topic = g.topic[n:]; len(g.topic) == 0 {
		g.topic = nil
	}
}

// updatePrice adjusts the price, or g.stretch for "change age / 2". It is called every five
// minutes.
func (g *simulation) updatePrice(now time.Time, pace float64) {
	if g.policy.ContentNotReady(now) {
		return
	}
	day := 0.0
	for hour := 2; hour < 24; hour++ {
		rateCap := float64(g.config.RateCaps[1].Rate)
		if hour >= 19 {
			rateCap = float64(g.config.RateCaps[0].Rate)
		}
		day += 3600 * math.Min(rateCap, pace)
	}
	load := scheduler.Load{PerDay: day, Unused: g.idle.Fraction(), Share: 1}
	load.Backlog = time.Duration(float64(g.queue.len) / math.Max(math.Min(pace, 250*g.scale), 1e-9) * float64(time.Second))
	g.idle = scheduler.IdleBudget{}
	if g.halfAge {
		g.adjustStretch(load)
		return
	}
	g.price.Adjust(load, now)
}

func (r *result) totals() string {
	return fmt.Sprintf("%.0f reads, %.0f HIGH, %.0f LOW", r.reads, r.high, r.low)
}
