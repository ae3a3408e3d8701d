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
)

var contestants = []string{"tiers", "change age / 2", "adaptive"}

// The day's budget of adr-013, for full entities.
const (
	perDay   = 20e6
	reserve  = 25.0  // a second, kept for readers
	lowMost  = 350.0 // a second
	freshFor = 3600  // seconds
)

// game is one play of a world under one policy.
type game struct {
	*world
	name   string
	scale  float64
	ahead  bool
	spend  scheduler.BudgetConfig
	policy *scheduler.Policy
	price  *scheduler.Price
	budget *scheduler.Budget
	heads  []int32 // by second: who is due then
	// The queue of who is due and not yet asked for, and the LOW topic.
	first, last, behind int32
	topic               []asked
	used                float64 // calls of the day
	credit              float64 // of LOW's worker
	half                bool    // by change age / 2
	stretch, aim        float64 // of it
	unused              scheduler.IdleBudget
	survey              scheduler.Survey
	result              *result
}

type asked struct{ who, at, due int32 }

func play(name string, n, days int, seed uint64, calls float64, ahead bool) (*result, error) {
	g := &game{
		world: newWorld(n, seed), name: name, scale: float64(n) / full * calls, ahead: ahead, price: scheduler.NewPrice(),
		heads: make([]int32, days*86400), first: none, last: none, half: name == contestants[1], stretch: 1, aim: 1, result: newResult(name, n, calls),
	}
	g.spend = scheduler.DefaultBudgetConfig()
	g.spend.TimeZone = "Asia/Seoul"
	for i := range g.spend.RateCaps {
		g.spend.RateCaps[i].Rate *= limiter.Rate(g.scale)
	}
	config := scheduler.DefaultConfig()
	config.Mode, config.TimeZone, config.NotBefore = scheduler.Tiers, "Asia/Seoul", 120
	if name == "adaptive" {
		config.Mode = scheduler.Adaptive
	}
	var err error
	if g.policy, err = scheduler.NewPolicy(config, g.spend, 1, g.price); err != nil {
		return nil, err
	}
	if g.budget, err = scheduler.NewBudget(g.spend); err != nil {
		return nil, err
	}
	for i := range g.heads {
		g.heads[i] = none
	}
	g.register()
	for second := range int32(days * 86400) {
		if second%86400 == 0 {
			g.used = 0
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

// register gives each entity the tier that its reads make, and a first due time.
func (g *game) register() {
	bounds := scheduler.DefaultConfig().Tiers
	for i := range int32(len(g.all)) {
		e := &g.all[i]
		tier, every := store.Cold, bounds.Cold.Every
		if r := float64(e.r); r >= bounds.Hot.Reads {
			tier, every = store.Hot, bounds.Hot.Every
		} else if r >= bounds.Warm.Reads {
			tier, every = store.Warm, bounds.Warm.Every
		}
		e.tier = int8(tier)
		due := int32(g.policy.FirstDue(entity(i), tier, begin).Sub(begin) / time.Second)
		g.remember(e, min(due-int32(every/time.Second), 0))
		g.put(i, due)
	}
}

// put has an entity come at a second; who comes after the end does not come.
func (g *game) put(i, due int32) {
	g.all[i].due = due
	if int(due) < len(g.heads) {
		g.all[i].next, g.heads[due] = g.heads[due], i
	}
}

func (g *game) tick(second int32) {
	for i := g.heads[second]; i != none; {
		next := g.all[i].next
		g.all[i].next = none
		if g.last == none {
			g.first = i
		} else {
			g.all[g.last].next = i
		}
		g.last = i
		g.behind++
		i = next
	}
	g.readers(second)
	now := moment(second)
	pace := g.pace(second)
	g.feed(second, now, pace)
	g.work(second, pace)
	if second%300 == 299 {
		g.look(now, pace)
	}
}

// readers read; what is older than fresh is refreshed for them, in the HIGH lane.
func (g *game) readers(second int32) {
	reads := g.poisson(g.reads / 86400 * visitors(int(second%86400)))
	for range int(reads) {
		e := &g.all[g.reader()]
		e.reads++
		g.result.read(second, e)
		if second-e.checked > freshFor && g.used < perDay*g.scale {
			g.used++
			g.result.high++
			g.check(e, second)
		}
	}
}

func (g *game) check(e *one, second int32) {
	if second >= e.outdated {
		e.updated = second
		e.outdated = until(second, g.wait(e.λ))
	}
	e.checked = second
}

// pace returns what the day policy lets LOW make in a second: limiter's rule. With ahead
// it knows that hours to come may spend less than that, and spends their part now.
func (g *game) pace(second int32) float64 {
	left := float64(86400 - second%86400)
	calls := perDay*g.scale - g.used - reserve*g.scale*left
	pace := calls / left
	if g.ahead {
		high := 250 * g.scale
		evening := math.Min(left, 5*3600)
		if rest := left - evening; rest > 0 {
			rest = math.Min(rest, 17*3600) // nothing is ready before 02:00
			pace = math.Min((calls-evening*math.Min(150*g.scale, calls/left*2))/rest, high)
		}
	}
	return math.Min(math.Max(pace, 0), lowMost*g.scale)
}

// feed asks for who is due, as far as the budget goes.
func (g *game) feed(second int32, now time.Time, pace float64) {
	room := scheduler.Capacity{PerSecond: pace, Queued: float64(len(g.topic)), Cost: 1, Share: 1}
	if len(g.topic) > 0 {
		room.Lag = time.Duration(second-g.topic[0].at) * time.Second
	}
	may, _ := g.budget.Allowance(room, now)
	fed := 0
	for fed < may && g.first != none {
		i := g.first
		e := &g.all[i]
		if g.first = e.next; g.first == none {
			g.last = none
		}
		g.behind--
		due := e.due
		move := g.next(i, e, now)
		e.claimed, e.remembered = seconds(move.History.ClaimedAt), seconds(move.History.UpdatedAt)
		e.changes, e.watched, e.reads = float32(move.History.Changes), float32(move.History.Watched.Hours()/24), float32(move.History.Reads)
		e.tier = int8(move.Tier)
		if !move.Enqueue || !g.half {
			g.put(i, max(int32(math.Ceil(move.Due.Sub(begin).Seconds())), second+1))
		}
		if move.Enqueue {
			g.topic = append(g.topic, asked{i, second, due})
			fed++
		}
	}
	g.budget.Spend(float64(fed))
	if fed < may && g.name == "adaptive" {
		g.step(second, now)
	}
	if !g.policy.ContentNotReady(now) {
		g.unused.Record(now, g.budget.Rate(room, now), float64(fed), fed < may)
	}
}

// step takes a step of the survey, as the scheduler does with a tick that leaves budget unused.
func (g *game) step(second int32, now time.Time) {
	after, underWay := g.survey.Begin(g.price.Value(), now)
	if !underWay {
		return
	}
	at := max(seconds(after), second) + 1
	for n := 0; n < 500 && int(at) < len(g.heads); at++ {
		i := g.heads[at]
		g.heads[at] = none
		for i != none {
			next, due := g.all[i].next, at
			if early, earlier := g.policy.EarlierDue(g.candidate(i, &g.all[i], now), now); earlier {
				due = max(seconds(early), second+1)
			}
			g.put(i, due)
			i = next
			n++
		}
	}
	if int(at) == len(g.heads) {
		g.survey.Advance(time.Time{})
		g.price.MarkComplete()
		return
	}
	g.survey.Advance(moment(at - 1))
}

func seconds(t time.Time) int32 { return int32(t.Sub(begin) / time.Second) }

func (g *game) next(i int32, e *one, now time.Time) store.Decision {
	c := g.candidate(i, e, now)
	if g.half {
		return g.halfNext(c, e, now)
	}
	return g.policy.Next(c, now)
}

func (g *game) candidate(i int32, e *one, now time.Time) store.Candidate {
	c := store.Candidate{RegisteredEntity: store.RegisteredEntity{
		Entity: entity(i), Tier: store.Tier(e.tier), Enabled: true, Due: moment(e.due),
		History: store.History{
			ClaimedAt: moment(e.claimed), UpdatedAt: moment(e.remembered), Changes: float64(e.changes),
			Watched: time.Duration(float64(e.watched) * 24 * float64(time.Hour)), Reads: float64(e.reads), ReadAt: now,
		},
	}}
	c.State = store.State{Entity: c.Entity, CheckedAt: moment(e.checked), UpdatedAt: moment(e.updated)}
	return c
}

// work is LOW's worker: it refreshes what lies in the topic, at the pace.
func (g *game) work(second int32, pace float64) {
	g.credit = math.Min(g.credit+pace, 5*pace+1)
	n := min(len(g.topic), int(g.credit))
	for _, a := range g.topic[:n] {
		g.used++
		g.result.refreshed(second, a, &g.all[a.who])
		g.check(&g.all[a.who], second)
		if g.half {
			g.put(a.who, max(g.halfDue(&g.all[a.who], second), second+1))
		}
	}
	g.credit -= float64(n)
	if g.topic = g.topic[n:]; len(g.topic) == 0 {
		g.topic = nil
	}
}

// look is what is done every five minutes: the price.
func (g *game) look(now time.Time, pace float64) {
	if g.policy.ContentNotReady(now) {
		return
	}
	day := 0.0
	for hour := 2; hour < 24; hour++ {
		rateCap := float64(g.spend.RateCaps[1].Rate)
		if hour >= 19 {
			rateCap = float64(g.spend.RateCaps[0].Rate)
		}
		day += 3600 * math.Min(rateCap, pace)
	}
	load := scheduler.Load{PerDay: day, Unused: g.unused.Fraction(), Share: 1}
	load.Backlog = time.Duration(float64(g.behind) / math.Max(math.Min(pace, 250*g.scale), 1e-9) * float64(time.Second))
	g.unused = scheduler.IdleBudget{}
	if g.half {
		g.adjustStretch(load)
		return
	}
	g.price.Adjust(load, now)
}

func (r *result) more() string {
	return fmt.Sprintf("%.0f reads, %.0f HIGH, %.0f LOW", r.reads, r.high, r.low)
}
