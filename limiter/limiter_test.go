package limiter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
)

const ms = time.Millisecond

// redisDouble is a fake Redis. It replies as the test defines and records the demands.
type redisDouble struct {
	mu      sync.Mutex
	demands []demand
	texts   []string        // the encoded quotas that the limiter has sent
	at      []time.Duration // time of each call to Redis, since the start of the test
	start   time.Time
	answer  func(n int, d demand) (grant, error)
	latency time.Duration // time that a call to Redis takes
	active  int
	most    int
}

func (r *redisDouble) acquireSlots(_ context.Context, d demand) (grant, error) {
	r.mu.Lock()
	n := len(r.demands)
	r.texts = append(r.texts, d.terms.text)
	d.terms = terms{}
	r.demands, r.at = append(r.demands, d), append(r.at, time.Since(r.start))
	r.active++
	r.most = max(r.most, r.active)
	r.mu.Unlock()
	if r.latency > 0 {
		<-time.After(r.latency)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active--
	return r.answer(n, d)
}

// eventText returns events as text: the name and the numbers of each.
func eventText(all []event) string {
	var words []string
	for _, e := range all {
		words = append(words, string(e.kind))
		for _, n := range e.numbers {
			words = append(words, strconv.FormatInt(n, 10))
		}
	}
	return strings.Join(words, " ")
}

// sentQuota is an encoded quota that the limiter has sent (quotaTerms).
type sentQuota struct {
	Revision int64           `json:"revision"`
	Policies json.RawMessage `json:"policies"`
}

func decodeQuota(text string) (sent sentQuota) {
	if err := json.Unmarshal([]byte(text), &sent); err != nil {
		panic(err)
	}
	return sent
}

// sentEvents returns the events that the limiter sent in all calls to Redis.
func (r *redisDouble) sentEvents() (words string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.demands {
		words += eventText(d.events) + ";"
	}
	return words
}

// now returns the time of the fake Redis in µs.
func (r *redisDouble) now() int64 { return 1_800_000_000_000_000 + time.Since(r.start).Microseconds() }

// withoutLogs returns the dependencies with a new metrics registry and a process name. If they have no
// log, it adds one that discards everything.
func withoutLogs(n Deps) Deps {
	if n.Log == nil {
		n.Log = slog.New(slog.DiscardHandler)
	}
	n.Metrics, n.Process = prometheus.NewRegistry(), "test"
	return n
}

// sleep sleeps in the simulated time of the synctest bubble. It makes no timer for a duration of zero:
// goroutines of one bubble that receive from expired timers at the same time can crash the race
// detector of Go 1.26, because these timers share one race context.
func sleep(d time.Duration) {
	if d <= 0 {
		runtime.Gosched() // let the other goroutines run, as a timer would
		return
	}
	<-time.After(d)
}

// elapse sleeps and waits until all goroutines of the bubble are blocked.
func elapse(d time.Duration) {
	sleep(d)
	synctest.Wait()
}

// grantAll is a reply of Redis that grants every requested slot. Each slot is due at once.
func grantAll(_ int, d demand) (grant, error) {
	return grant{high: make([]time.Duration, d.high), low: make([]time.Duration, d.low)}, nil
}

// simulated runs the test in a synctest bubble with a limiter that calls the fake Redis r.
func simulated(t *testing.T, r *redisDouble, test func(t *testing.T, l *Limiter)) {
	t.Helper()
	simulatedWith(t, r, second(500, 450, 100, 0), Deps{}, test)
}

func simulatedWith(t *testing.T, r *redisDouble, config Config, deps Deps, test func(t *testing.T, l *Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r.start = time.Now()
		l, err := newLimiter("nexon", config, r.acquireSlots, withoutLogs(deps))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		test(t, l)
	})
}

func mustAcquire(t *testing.T, l *Limiter, lane schemas.Lane) *Permit {
	t.Helper()
	p, err := l.Acquire(t.Context(), lane, Call{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPermit_IsSpentOnceFromItsSlot(t *testing.T) {
	r := &redisDouble{latency: 3 * ms, answer: func(int, demand) (grant, error) {
		return grant{low: []time.Duration{20 * ms}}, nil
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		start := time.Now()
		p := mustAcquire(t, l, schemas.Low)
		// The round trip to Redis takes 3 ms. Redis has read its clock at an unknown time in this
		// interval, and the slot is 20 ms later. So the slot is certainly due only 20 ms after the end
		// of the round trip.
		if waited := time.Since(start); waited != 23*ms {
			t.Errorf("got the permit after %v", waited)
		}
		if !p.Spend() || p.Spend() {
			t.Error("a permit must be spent exactly once")
		}
		p.Release()
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.alloc.queues.low.slots) > 0 {
			t.Error("a spent permit was passed on")
		}
	})
}

func TestPermit_Expires(t *testing.T) {
	r := &redisDouble{latency: 3 * ms, answer: func(n int, d demand) (grant, error) { return grantAll(n, d) }}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		p := mustAcquire(t, l, schemas.Low)
		sleep(permitLife - 3*ms) // the lifetime of a permit counts from the start of the call to Redis
		if !p.Spend() {
			t.Error("the permit expired too early")
		}
		p = mustAcquire(t, l, schemas.Low)
		sleep(permitLife - 3*ms + 1)
		if p.Spend() {
			t.Error("an expired permit was spent")
		}
	})
}

func TestAcquire_WaitersShareTheNextCall(t *testing.T) {
	r := &redisDouble{latency: 10 * ms, answer: grantAll}
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
			synctest.Wait() // each caller is queued before the next one arrives
		}
		wg.Wait()
		if r.most != 1 || len(r.demands) != 2 || r.demands[0].low != 1 || r.demands[1].low != 19 {
			t.Errorf("demands %+v, %d calls at once", r.demands, r.most)
		}
		// The first caller makes its own call to Redis, so it is served first. The other callers
		// are served by one reply and wake up at the same time, in any order.
		if order[0] != 0 || len(order) != 20 {
			t.Errorf("order %v", order)
		}
	})
}

func TestAcquire_ServesEachLaneInOrder(t *testing.T) {
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

func TestAcquire_CanceledWaiterPassesItsSlotOn(t *testing.T) {
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
			_, err := l.Acquire(ctx, schemas.Low, Call{})
			first <- err
		}()
		synctest.Wait()
		second := make(chan *Permit)
		go func() { second <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait()
		cancel(gone)
		if err := <-first; !errors.Is(err, gone) {
			t.Errorf("got the error %v", err)
		}
		if p := <-second; !p.Spend() || time.Since(r.start) != 20*ms {
			t.Errorf("the next waiter got the slot after %v", time.Since(r.start))
		}
	})
}

func TestRelease_PassesOnUnlessExpired(t *testing.T) {
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
		sleep(permitLife + 1)
		second.Release()
		go func() { next <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait()
		select {
		case <-next:
			t.Error("an expired permit was passed on")
		default:
		}
		r.mu.Lock()
		r.answer = grantAll
		r.mu.Unlock()
		<-next
	})
}

func TestReacquire_ComesFirst(t *testing.T) {
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
			if _, err := l.Reacquire(t.Context(), schemas.Low, Call{}); err != nil {
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

func TestRedisOutage_IsOneCondition(t *testing.T) {
	var down atomic.Bool
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if down.Load() {
			return grant{}, errors.New("connection refused")
		}
		return grantAll(n, d)
	}}
	var log bytes.Buffer
	simulatedWith(t, r, second(500, 450, 100, 0), Deps{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, l *Limiter) {
		for outage := 1; outage <= 2; outage++ {
			down.Store(true)
			got := acquireLater(t, l, schemas.High)
			elapse(10 * time.Second)
			down.Store(false)
			synctest.Wait()
			elapse(2 * time.Second)
			if p := <-got; p == nil {
				t.Fatalf("outage %d: got no permit after it, want one", outage)
			}
			for _, line := range []string{"level=WARN msg=\"calls to redis failed twice", "level=INFO msg=\"permits are granted again"} {
				if n := strings.Count(log.String(), line); n != outage {
					t.Errorf("outage %d: got %d lines %q, want %d: %s", outage, n, line, outage, log.String())
				}
			}
		}
	})
}
