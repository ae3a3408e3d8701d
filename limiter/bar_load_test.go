package limiter

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

const (
	warmUp   = 500 * time.Millisecond // time before the measurement begins, in which idle partitions use up their bursts
	loadTime = 6 * time.Second
)

// loadRun is one run of a fleet with the quota of the reference source.
type loadRun struct {
	name  string
	fleet *fleet

	perPermit float64 // number of calls to Redis per permit
	low, all  float64 // measured rate of LOW, and of both lanes together, in permits per second
	came      []time.Duration
	waited    []time.Duration
}

// saturated lets `low` LOW callers and `high` HIGH callers per process acquire permits
// continuously. It measures the rate of permits, and the calls to Redis per permit.
func (l *loadRun) saturated(t *testing.T, low, high int) {
	f := l.fleet
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	waitLow := f.saturate(ctx, schemas.Low, low)
	waitHigh := f.saturate(ctx, schemas.High, high)
	start := time.Now().Add(warmUp)
	passUntil(ctx, start)
	calls, permits := f.counted(callsTotal), f.counted(acquiredTotal)
	passUntil(ctx, start.Add(loadTime))
	l.perPermit = (f.counted(callsTotal) - calls) / (f.counted(acquiredTotal) - permits)
	l.low, l.all = f.perSecond(start, schemas.Low), f.perSecond(start, "")
	stop()
	waitLow()
	waitHigh()
}

// bursts starts all callers at the same time, twice. Before each start it waits until all partitions of
// the window can grant their full bursts.
func (l *loadRun) bursts(t *testing.T) {
	for range 2 {
		passUntil(t.Context(), time.Now().Add(1200*time.Millisecond))
		ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		waitLow := l.fleet.saturate(ctx, schemas.Low, 100)
		waitHigh := l.fleet.saturate(ctx, schemas.High, 50)
		waitLow()
		waitHigh()
		stop()
	}
	l.perPermit = l.fleet.perPermit()
}

// highAmongLow measures the waits of HIGH callers that arrive while LOW callers use all slots that LOW
// can get.
func (l *loadRun) highAmongLow(t *testing.T, arrivals []arrival) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	wait := l.fleet.saturate(ctx, schemas.Low, 60)
	passUntil(ctx, time.Now().Add(warmUp))
	calls, permits := l.fleet.counted(callsTotal), l.fleet.counted(acquiredTotal)
	l.came, l.waited = l.fleet.arrive(t, schemas.High, arrivals)
	l.perPermit = (l.fleet.counted(callsTotal) - calls) / (l.fleet.counted(acquiredTotal) - permits)
	stop()
	wait()
}

// evenly and atRandom return arrivals at a rate, spread over the processes. `atRandom` is a Poisson
// process that is the same in every run.
func evenly(perSecond, n, processes int) (all []arrival) {
	for i := range n {
		all = append(all, arrival{time.Duration(i) * time.Second / time.Duration(perSecond), i % processes})
	}
	return all
}

func atRandom(perSecond, n, processes int) (all []arrival) {
	rng := rand.New(rand.NewPCG(13, uint64(perSecond)))
	at := 0.0
	for range n {
		at += rng.ExpFloat64() / float64(perSecond)
		all = append(all, arrival{time.Duration(at * float64(time.Second)), rng.IntN(processes)})
	}
	return all
}

// inCrowds returns groups of 75 arrivals, each group at a random time in a random process: 300
// arrivals a second on average, so that callers wait up to a second.
func inCrowds(processes int) (all []arrival) {
	const crowds, size = 24, 75
	rng := rand.New(rand.NewPCG(13, 75))
	for range crowds {
		at, process := time.Duration(rng.Int64N(int64(6*time.Second))), rng.IntN(processes)
		for range size {
			all = append(all, arrival{at, process})
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.after, b.after) })
	return all
}

// judgeLoad measures the waits and the rate of permits with the reference quota. The runs that
// measure waits start after the other runs, because the many processes of the other runs would
// lengthen the waits. Parallel runs have one source each.
func (b *bar) judgeLoad(t *testing.T, rdb *redis.Client, quota Quota) {
	var loads []*loadRun
	var wg sync.WaitGroup
	start := func(name string, processes int, run func(l *loadRun)) *loadRun {
		l := &loadRun{name: name}
		loads = append(loads, l)
		wg.Go(func() {
			l.fleet = startFleet(t, rdb, quota, processes)
			defer l.fleet.stop()
			run(l)
		})
		return l
	}
	low := start("LOW alone, 12 processes of 40 waiters", 12, func(l *loadRun) { l.saturated(t, 40, 0) })
	both := start("both lanes, 4 processes of 60 LOW and 10 HIGH", 4, func(l *loadRun) { l.saturated(t, 60, 10) })
	start("LOW alone, 48 processes of 1 waiter", 48, func(l *loadRun) { l.saturated(t, 1, 0) })
	start("idle, then 4 processes of 100 LOW and 50 HIGH at once, twice", 4, func(l *loadRun) { l.bursts(t) })
	wg.Wait()
	at60 := start("HIGH 60/s Poisson, LOW saturating", 4, func(l *loadRun) { l.highAmongLow(t, atRandom(60, 600, 4)) })
	at90 := start("HIGH 90/s evenly, LOW saturating", 4, func(l *loadRun) { l.highAmongLow(t, evenly(90, 900, 4)) })
	random90 := start("HIGH 90/s Poisson, LOW saturating", 4, func(l *loadRun) { l.highAmongLow(t, atRandom(90, 900, 4)) })
	crowds := start("LOW in crowds of 75", 4, func(l *loadRun) {
		l.came, l.waited = l.fleet.arrive(t, schemas.Low, inCrowds(4))
		l.perPermit = l.fleet.perPermit()
	})
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, l := range loads {
		b.addMax("Redis calls a permit: "+l.name, "", l.perPermit, 1)
	}
	b.addMax("Redis calls a permit when LOW saturates", "", low.perPermit, 0.35)
	b.addMin("budget used, "+low.name, " %", 100*low.low/350, 99.5)
	b.addMin("budget used, "+both.name, " %", 100*both.all/450, 99.5)
	b.addMin("HIGH when LOW floods", "/s", both.all-both.low, 100)
	b.judgeWindows(t, rdb, loads)

	high, shared := quota.partitioned[0].partitions[0], quota.partitioned[0].partitions[1]
	b.addMax("HIGH's p99 wait at 60/s, Poisson, LOW saturating", " ms", p99(at60.waited), 5)
	b.addMax("HIGH's p99 wait at 90/s, evenly, LOW saturating", " ms", p99(at90.waited), 20)
	b.addUnlimited("at 90/s, Poisson", " ms", p99(random90.waited))
	b.addUnlimited("the same in an ideal lane of 100/s", " ms", p99(inOrder(high, random90.came)))
	fair := p99(inOrder(shared, crowds.came))
	b.addMax("LOW's p99 wait of first come, first served: 75 at once in one of 4 processes, 300/s", " x", p99(crowds.waited)/fair, 1.6)
	b.addUnlimited("limiter", " ms", p99(crowds.waited))
	b.addUnlimited("first come, first served", " ms", fair)
}

// judgeWindows checks the maximum number of permits in any sliding second of each run.
func (b *bar) judgeWindows(t *testing.T, rdb *redis.Client, loads []*loadRun) {
	slots, permits := 0, 0
	for _, l := range loads {
		slots, permits = max(slots, l.fleet.mostSlots()), max(permits, l.fleet.mostSpent())
	}
	b.addMax("slots in any second of any run", "", float64(slots), 474)
	b.addMax("permits spent in any second of any run (500 may arrive)", "", float64(permits), 497)
	b.addUnlimited("ADR's script of 450/s, idle, then a burst", "", float64(worstSecond(t, adrAdmits(t, rdb, 450))))
	b.addUnlimited("redis_rate of 450/s, idle, then a burst", "", float64(worstSecond(t, rateAdmits(rdb, 450))))
}
