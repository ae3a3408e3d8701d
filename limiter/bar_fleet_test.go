package limiter

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

const (
	callsTotal    = "rate_limiter_redis_calls_total"
	acquiredTotal = "rate_limiter_acquired_total"
)

// measured is a limiter with the registry of its metrics.
type measured struct {
	*Limiter
	metrics *prometheus.Registry
}

// measure starts a limiter with its own metrics registry.
func measure(source string, q Quota, rdb redis.UniversalClient) measured {
	reg := prometheus.NewRegistry()
	l, err := New(source, q.config, Deps{Redis: rdb, Process: servicetest.Name("process"), Log: slog.New(slog.DiscardHandler), Metrics: reg})
	if err != nil {
		panic(err) // impossible, because q is a valid quota
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alloc.setQuota(q, 0, false) // the test sets the quota directly, because no configuration results in this quota
	return measured{l, reg}
}

// slotOf returns the earliest and the latest possible time of the permit's slot, by Redis' clock.
func slotOf(p *Permit) (earliest, latest time.Time) {
	return p.slot.notAfter.Add(-permitLife), p.slot.notBefore
}

// acquireOne acquires and spends one permit.
func (m measured) acquireOne(t *testing.T, lane schemas.Lane) error {
	p, err := m.Acquire(t.Context(), lane, Call{})
	if err == nil {
		p.Spend()
	}
	return err
}

// fleet is a set of limiters of one source. Each limiter stands for a process. The fleet records the
// calls that its upstream receives.
type fleet struct {
	limiters []measured
	stop     func()

	mu    sync.Mutex
	spent []spent // the spent permits, in the order in which they were spent
}

type spent struct {
	at               time.Time
	lane             schemas.Lane
	earliest, latest time.Time // the time of the permit's slot lies between these two times
}

// startFleet starts limiters and waits until their quiet period is over.
func startFleet(t *testing.T, rdb *redis.Client, q Quota, processes int) *fleet {
	t.Helper()
	source := servicetest.Name("bar")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	f := &fleet{stop: func() { cancel(); wg.Wait() }}
	for range processes {
		m := measure(source, q, rdb)
		f.limiters = append(f.limiters, m)
		wg.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	if err := f.limiters[0].acquireOne(t, schemas.High); err != nil {
		t.Error(err)
	}
	return f
}

// counted returns the sum of the Prometheus counter `name` over all processes.
func (f *fleet) counted(name string) float64 {
	sum := 0.0
	for _, m := range f.limiters {
		families, _ := m.metrics.Gather()
		for _, family := range families {
			if family.GetName() != name {
				continue
			}
			for _, metric := range family.GetMetric() {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// perPermit returns the calls to Redis per permit spent since the start.
func (f *fleet) perPermit() float64 { return f.counted(callsTotal) / f.counted(acquiredTotal) }

// spend records a spent permit. The time is read while the lock is held, so that the records
// are in order.
func (f *fleet) spend(p *Permit, lane schemas.Lane) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !p.Spend() {
		return false
	}
	earliest, latest := slotOf(p)
	f.spent = append(f.spent, spent{time.Now(), lane, earliest, latest})
	return true
}

// saturate runs `waiters` callers per process, which acquire permits continuously until ctx ends.
func (f *fleet) saturate(ctx context.Context, lane schemas.Lane, waiters int) (wait func()) {
	var wg sync.WaitGroup
	for _, m := range f.limiters {
		for range waiters {
			wg.Go(func() {
				for f.take(ctx, m, lane) == nil {
				}
			})
		}
	}
	return wg.Wait
}

// take acquires and spends one permit, like a worker.
func (f *fleet) take(ctx context.Context, m measured, lane schemas.Lane) error {
	p, err := m.Acquire(ctx, lane, Call{})
	for err == nil && !f.spend(p, lane) {
		p, err = m.Reacquire(ctx, lane, Call{})
	}
	return err
}

// arrival is one planned call of Acquire: the process that makes the call, and the time since the
// start of the test.
type arrival struct {
	after   time.Duration
	process int
}

// arrive calls Acquire once for each arrival, at the arrival's time. For each arrival it returns
// the time of the call since the start of arrive, and how long the call waited.
func (f *fleet) arrive(t *testing.T, lane schemas.Lane, arrivals []arrival) (came, waited []time.Duration) {
	came, waited = make([]time.Duration, len(arrivals)), make([]time.Duration, len(arrivals))
	var wg sync.WaitGroup
	start := time.Now()
	for i, a := range arrivals {
		passUntil(t.Context(), start.Add(a.after))
		wg.Go(func() {
			came[i] = time.Since(start)
			if err := f.take(t.Context(), f.limiters[a.process], lane); err != nil {
				t.Error(err)
			}
			waited[i] = time.Since(start) - came[i]
		})
	}
	wg.Wait()
	return came, waited
}

// passUntil waits in real time until the given time.
func passUntil(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	<-ctx.Done()
}

// perSecond returns how many permits of a lane were spent per second since the time `from`. An empty
// lane selects both lanes.
func (f *fleet) perSecond(from time.Time, lane schemas.Lane) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var at []time.Time
	for _, s := range f.spent {
		if s.at.After(from) && (lane == "" || s.lane == lane) {
			at = append(at, s.at)
		}
	}
	if len(at) < 2 {
		return 0
	}
	return float64(len(at)-1) / at[len(at)-1].Sub(at[0]).Seconds()
}

// mostSpent returns the maximum number of permits spent in a sliding second.
func (f *fleet) mostSpent() int {
	var at []time.Time
	for _, s := range f.spent {
		at = append(at, s.at)
	}
	return mostInASecond(at)
}

// mostSlots returns the maximum number of slots within one second. It counts a slot only if both
// its earliest and its latest possible time are within that second.
func (f *fleet) mostSlots() int {
	byStart := slices.SortedFunc(slices.Values(f.spent), func(a, b spent) int { return a.earliest.Compare(b.earliest) })
	most := 0
	for i, first := range byStart {
		end, n := first.earliest.Add(time.Second), 0
		for _, s := range byStart[i:] {
			if s.earliest.After(end) {
				break
			}
			if !s.latest.After(end) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// mostInASecond returns how many of the sorted times are at most within one second.
func mostInASecond(at []time.Time) int {
	most, from := 0, 0
	for to := range at {
		for at[to].Sub(at[from]) > time.Second {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

// inOrder returns the waits of callers that an ideal GCRA serves in the order of their arrival. An
// ideal GCRA needs no time for itself.
func inOrder(l gcra, came []time.Duration) (waits []time.Duration) {
	tat := time.Duration(0)
	for _, at := range slices.SortedFunc(slices.Values(came), cmp.Compare[time.Duration]) {
		waits = append(waits, max(0, tat-time.Duration(l.burst-1)*l.interval-at))
		tat = max(tat, at) + l.interval
	}
	return waits
}
