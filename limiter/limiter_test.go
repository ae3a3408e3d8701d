package limiter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

const ms = time.Millisecond

// redisDouble answers as the test says and remembers what it was asked.
type redisDouble struct {
	mu      sync.Mutex
	demands []demand
	at      []time.Duration // since the start
	start   time.Time
	answer  func(n int, d demand) (grant, error)
	roundup time.Duration // how long an answer takes
	active  int
	most    int
}

func (r *redisDouble) ask(_ context.Context, d demand) (grant, error) {
	r.mu.Lock()
	n := len(r.demands)
	d.terms = terms{}
	r.demands, r.at = append(r.demands, d), append(r.at, time.Since(r.start))
	r.active++
	r.most = max(r.most, r.active)
	r.mu.Unlock()
	if r.roundup > 0 {
		<-time.After(r.roundup)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active--
	return r.answer(n, d)
}

// quietly completes what a limiter needs.
func quietly(n Needs) Needs {
	n.Log, n.Metrics, n.Process = slog.New(slog.DiscardHandler), prometheus.NewRegistry(), "test"
	return n
}

// pass lets the bubble's own time pass.
func pass(d time.Duration) { <-time.After(d) }

// plenty grants everything at once.
func plenty(_ int, d demand) (grant, error) {
	return grant{high: make([]time.Duration, d.high), low: make([]time.Duration, d.low)}, nil
}

// simulated runs the test in a bubble of its own time, with a limiter that asks
// the double.
func simulated(t *testing.T, r *redisDouble, test func(t *testing.T, l *Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r.start = time.Now()
		l, err := newLimiter("nexon", second(500, 450, 100, 0), r.ask, quietly(Needs{}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		test(t, l)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func mustAcquire(t *testing.T, l *Limiter, lane schemas.Lane) *Permit {
	t.Helper()
	p, err := l.Acquire(t.Context(), lane)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAPermitIsGivenAtItsSlotAndSpentOnce(t *testing.T) {
	r := &redisDouble{roundup: 3 * ms, answer: func(int, demand) (grant, error) {
		return grant{low: []time.Duration{20 * ms}}, nil
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		start := time.Now()
		p := mustAcquire(t, l, schemas.Low)
		// Redis' now lay somewhere in the round trip: the slot has certainly come
		// a wait after its end.
		if waited := time.Since(start); waited != 23*ms {
			t.Errorf("given after %v", waited)
		}
		if !p.Spend() || p.Spend() {
			t.Error("a permit must be spent exactly once")
		}
		p.Release()
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.low.slots) > 0 {
			t.Error("a spent permit was handed on")
		}
	})
}

func TestAPermitLapses(t *testing.T) {
	r := &redisDouble{roundup: 3 * ms, answer: func(n int, d demand) (grant, error) { return plenty(n, d) }}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		p := mustAcquire(t, l, schemas.Low)
		pass(permitLife - 3*ms) // measured from before the call to Redis
		if !p.Spend() {
			t.Error("lapsed too early")
		}
		p = mustAcquire(t, l, schemas.Low)
		pass(permitLife - 3*ms + 1)
		if p.Spend() {
			t.Error("spent after its life")
		}
	})
}

func TestWaitersRideTheNextCallTogetherAndInOrder(t *testing.T) {
	r := &redisDouble{roundup: 10 * ms, answer: plenty}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				mustAcquire(t, l, schemas.Low)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			})
			synctest.Wait() // each is in the queue before the next comes
		}
		wg.Wait()
		if r.most != 1 || len(r.demands) != 2 || r.demands[0].low != 1 || r.demands[1].low != 19 {
			t.Errorf("demands %+v, %d calls at once", r.demands, r.most)
		}
		// Those of one answer are woken in one instant; the first call's is first.
		if order[0] != 0 || len(order) != 20 {
			t.Errorf("order %v", order)
		}
	})
}

func TestEachLaneIsFirstComeFirstServed(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		g := grant{}
		for i := range d.low {
			g.low = append(g.low, time.Duration(i)*ms)
		}
		for i := range d.high {
			g.high = append(g.high, time.Duration(i)*ms)
		}
		return g, nil
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		var mu sync.Mutex
		order := map[schemas.Lane][]int{}
		var wg sync.WaitGroup
		for i := range 50 {
			lane := []schemas.Lane{schemas.High, schemas.Low}[i%2]
			wg.Go(func() {
				mustAcquire(t, l, lane)
				mu.Lock()
				order[lane] = append(order[lane], i)
				mu.Unlock()
			})
			synctest.Wait()
		}
		wg.Wait()
		for lane, got := range order {
			if len(got) != 25 || !slices.IsSorted(got) {
				t.Errorf("%s: %v", lane, got)
			}
		}
	})
}

func TestACancelledWaitersSlotGoesToTheNext(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if n > 0 {
			return grant{backLow: time.Hour}, nil
		}
		return grant{low: []time.Duration{20 * ms}}, nil
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the reader left")
		first := make(chan error)
		go func() {
			_, err := l.Acquire(ctx, schemas.Low)
			first <- err
		}()
		synctest.Wait()
		second := make(chan *Permit)
		go func() { second <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait()
		cancel(gone)
		if err := <-first; !errors.Is(err, gone) {
			t.Errorf("cancelled with %v", err)
		}
		if p := <-second; !p.Spend() || time.Since(r.start) != 20*ms {
			t.Errorf("the next one got it after %v", time.Since(r.start))
		}
	})
}

func TestAReleasedPermitGoesToTheNextWaiterAndALapsedOneToNobody(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if n == 0 {
			return grant{low: []time.Duration{0}}, nil
		}
		return grant{backLow: time.Second}, nil
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		p := mustAcquire(t, l, schemas.Low)
		next := make(chan *Permit, 1)
		go func() { next <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait()
		p.Release()
		p.Release()
		synctest.Wait()
		second := <-next
		if p.Spend() {
			t.Error("a released permit was spent")
		}
		pass(permitLife + 1)
		second.Release()
		go func() { next <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait()
		select {
		case <-next:
			t.Error("a lapsed permit was handed on")
		default:
		}
		r.mu.Lock()
		r.answer = plenty
		r.mu.Unlock()
		<-next
	})
}

func TestWhosePermitLapsedComesFirst(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if n == 0 {
			return grant{backLow: 100 * ms}, nil
		}
		return grant{low: []time.Duration{0, 5 * ms}}, nil
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		order := make(chan string, 2)
		var wg sync.WaitGroup
		wg.Go(func() { mustAcquire(t, l, schemas.Low); order <- "ordinary" })
		synctest.Wait()
		wg.Go(func() {
			if _, err := l.AcquireAgain(t.Context(), schemas.Low); err != nil {
				t.Error(err)
			}
			order <- "again"
		})
		wg.Wait()
		if first := <-order; first != "again" {
			t.Errorf("%s came first", first)
		}
	})
}

func TestRefusedDemandComesBackWhenItWasToldAndNotBefore(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if n == 0 {
			return grant{high: make([]time.Duration, d.high), low: []time.Duration{0}, backLow: 70 * ms}, nil
		}
		return plenty(n, d)
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { mustAcquire(t, l, schemas.Low) })
		}
		synctest.Wait()
		// New demand of the refused lane waits too; the other lane asks at once.
		wg.Go(func() { mustAcquire(t, l, schemas.Low) })
		pass(10 * ms)
		mustAcquire(t, l, schemas.High)
		wg.Wait()
		last := len(r.demands) - 1
		if r.demands[last].low < 4 || r.at[last] != 70*ms || r.demands[last-1] != (demand{high: 1}) || r.at[last-1] != 10*ms {
			t.Errorf("demands %+v at %v", r.demands, r.at)
		}
	})
}

func TestWithoutRedisThereIsNoPermitAndOneProbeASecond(t *testing.T) {
	down := errors.New("connection refused")
	r := &redisDouble{}
	r.answer = func(n int, d demand) (grant, error) {
		if time.Since(r.start) < 10*time.Second {
			return grant{}, down
		}
		return plenty(n, d)
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				p := mustAcquire(t, l, []schemas.Lane{schemas.High, schemas.Low}[i%2])
				if at := time.Since(r.start); at < 10*time.Second || at > 12*time.Second {
					t.Errorf("a permit at %v; Redis came back at 10 s", at)
				}
				if !p.Spend() {
					t.Error("not to be spent")
				}
			})
		}
		wg.Wait()
		if n := len(r.demands); n > 13 {
			t.Errorf("%d calls to a dead Redis in 10 s", n)
		}
	})
}

func TestABrakeGivesUpWhatIsReservedAndIsToldToRedis(t *testing.T) {
	r := &redisDouble{}
	var braked time.Time
	r.answer = func(n int, d demand) (grant, error) {
		var us, base, sent int64
		if _, err := fmt.Sscanf(d.happened, "brake %d %d %d", &us, &base, &sent); err == nil {
			braked = time.Now().Add(micros(us))
		}
		if wait := time.Until(braked); wait > horizon {
			return grant{backLow: wait - horizon}, nil
		} else if wait > 0 {
			return grant{low: []time.Duration{wait}}, nil
		}
		return grant{low: []time.Duration{50 * ms, 60 * ms}}, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		got := make(chan *Permit)
		go func() { got <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait() // it has a slot in 50 ms
		l.Brake(2*time.Second, time.Now())
		p := <-got
		if at := time.Since(r.start); at < 2*time.Second || at > 2100*ms || !p.Spend() {
			t.Errorf("a permit at %v under a brake of 2 s", at)
		}
	})
}

func TestABrakeThatRedisMayNotHaveHeardIsToldAgainAndARefundIsNot(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if n == 1 {
			return grant{}, errors.New("no answer in time")
		}
		return plenty(n, d)
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		config := second(500, 450, 100, 0)
		config.Policies = append(config.Policies, Policy{Name: "day", Limit: 1000, Window: Day})
		quota, err := NewQuota(config)
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		l.put(quota, 1, false)
		l.mu.Unlock()
		p := mustAcquire(t, l, schemas.Low)
		pass(permitLife + 1)
		l.mu.Lock()
		l.tell = append(l.tell, "brake 5 6 7")
		l.mu.Unlock()
		if p.Spend() {
			t.Error("spent after its life")
		}
		mustAcquire(t, l, schemas.Low)
		told := ""
		for _, d := range r.demands[1:] {
			told += d.happened + ";"
		}
		if strings.Count(told, "brake 5 6 7") != 2 || strings.Count(told, "refund") != 1 {
			t.Errorf("told %q", told)
		}
	})
}

func TestAnAcquireAfterItsContextEndedAsksNobody(t *testing.T) {
	r := &redisDouble{answer: plenty}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Acquire(ctx, schemas.Low); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if len(r.demands) != 0 {
			t.Errorf("demands %+v", r.demands)
		}
	})
}

func TestAGarbledReplyIsRefused(t *testing.T) {
	const now = 1_800_000_000_000_000
	for _, reply := range [][]int64{
		nil,
		{-1},
		{1, 0, now},
		{1, 0, now, 0},
		{0, 0, now, 0, 1, 5, 0},
		{-1, 1, now, 0},
		{1, -1, now, 0},
		{2, 0, now, 0, 1, 5, 0},
		{2, 0, now, 0, 3, 5, 0},
		{0, 0, now, 0, 0},
		{0, 0, now, 0, 0, 0},
		{1, 0, now, 0, -1, 5, 0},
		{1, 0, now, 0, 5, 0, 1, 0},
		{2000, 1, now, 0, 2001, 0, 0},
	} {
		if g, err := decodeGrant(reply); err == nil {
			t.Errorf("%v was taken as %+v", reply, g)
		}
	}
}

// judge counts what is spent, as the upstream would.
type judge struct {
	mu    sync.Mutex
	spent []time.Time
	byLow int
}

func (j *judge) most(window time.Duration) int {
	most, from := 0, 0
	for to, at := range j.spent {
		for at.Sub(j.spent[from]) > window {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

func TestSeveralProcessesTogetherKeepTheContract(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		source := servicetest.Name("nexon")
		var j judge
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		for range 3 {
			l, err := New(source, second(500, 450, 100, 0), quietly(Needs{Redis: rdb}))
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if err := l.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			for i := range 100 {
				lane := []schemas.Lane{schemas.High, schemas.Low, schemas.Low}[i%3]
				wg.Go(func() {
					for {
						p, err := l.Acquire(ctx, lane)
						if err != nil {
							return
						}
						// The time is taken within the judge's lock, so the order is true.
						j.mu.Lock()
						if p.Spend() {
							j.spent = append(j.spent, time.Now())
							if lane == schemas.Low {
								j.byLow++
							}
						}
						enough := len(j.spent) >= 1200
						j.mu.Unlock()
						if enough {
							stop()
						}
					}
				})
			}
		}
		wg.Wait()
		if most := j.most(time.Second); most > 497 {
			t.Errorf("%d permits were spent in a second", most)
		}
		if j.byLow == 0 || j.byLow == len(j.spent) {
			t.Errorf("LOW spent %d of %d", j.byLow, len(j.spent))
		}
		t.Logf("%d permits, at most %d in a second, over %v", len(j.spent), j.most(time.Second), j.spent[len(j.spent)-1].Sub(j.spent[0]))
	})
}

func TestAnEvictingRedisIsRefused(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		if err := CheckRedis(t.Context(), rdb); err != nil {
			t.Error(err)
		}
	})
}
