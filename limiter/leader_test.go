package limiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/schemas"
)

func TestAcquire_LoneCallerNeedsNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := time.Duration(0)
		r := &redisDouble{latency: 2 * ms, start: time.Now()}
		r.answer = func(_ int, d demand) (grant, error) {
			g := grant{now: r.now()}
			for range d.low {
				g.low = append(g.low, wait)
			}
			return g, nil
		}
		l, err := newLimiter("nexon", second(500, 450, 100, 0), r.acquireSlots, withoutLogs(Deps{}))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			began := time.Now()
			if p := mustAcquire(t, l, schemas.Low); !p.Spend() || time.Since(began) != 2*ms {
				t.Errorf("got a permit after %v", time.Since(began))
			}
		}
		wait = 20 * ms
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Acquire(ctx, schemas.Low, Call{}); !errors.Is(err, context.DeadlineExceeded) || len(r.demands) != 6 {
			t.Errorf("without Run: got %v after %d calls", err, len(r.demands))
		}
		running, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(running) }()
		began := time.Now()
		if p := mustAcquire(t, l, schemas.Low); !p.Spend() || time.Since(began) > 30*ms {
			t.Errorf("with Run: got a permit after %v", time.Since(began))
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAcquire_CanceledCallerLosesNothing(t *testing.T) {
	r := &redisDouble{latency: 20 * ms}
	r.answer = func(_ int, d demand) (grant, error) {
		g := grant{now: r.now()}
		for i := range d.low {
			g.low = append(g.low, time.Duration(10+5*i)*ms)
		}
		return g, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the reader left")
		leader := make(chan error, 1)
		go func() {
			_, err := l.Acquire(ctx, schemas.Low, Call{})
			leader <- err
		}()
		synctest.Wait()
		var followers []chan *Permit
		for range 2 {
			followers = append(followers, acquireLater(t, l, schemas.Low))
			synctest.Wait() // each caller is queued before the next one arrives
		}
		elapse(10 * ms)
		cancel(gone)
		elapse(10*ms + 1) // the call to Redis continues after its caller has given up
		if err := <-leader; !errors.Is(err, gone) {
			t.Errorf("the first caller got %v", err)
		}
		p := <-followers[0]
		if waited := time.Since(r.start); !p.Spend() || waited != 30*ms {
			t.Errorf("the first caller's slot was used after %v", waited)
		}
		if p := <-followers[1]; !p.Spend() {
			t.Error("Spend: got false, want true")
		}
		if r.most != 1 || len(r.demands) != 2 {
			t.Errorf("%d calls, %d at once", len(r.demands), r.most)
		}
	})
}

// stock is a fake Redis. It grants each slot once, and records how the slot is used.
type stock struct {
	*redisDouble
	rng     *rand.Rand
	next    int64
	granted map[int64]bool
	spent   map[int64]int
	held    map[int64]bool // slots whose permit was neither spent nor released yet
}

func newStock() *stock {
	s := &stock{
		redisDouble: &redisDouble{start: time.Now()}, rng: rand.New(rand.NewPCG(1, 8)),
		granted: map[int64]bool{}, spent: map[int64]int{}, held: map[int64]bool{},
	}
	s.answer = func(_ int, d demand) (grant, error) {
		if s.rng.IntN(50) == 0 {
			return grant{}, errors.New("no answer in time")
		}
		g := grant{now: s.now()}
		slot := func() time.Duration {
			s.next = max(s.next+50, g.now)
			s.granted[s.next] = true
			return micros(s.next - g.now)
		}
		for range s.rng.IntN(d.high + 1) {
			g.high = append(g.high, slot())
		}
		for range s.rng.IntN(d.low + 1) {
			g.low = append(g.low, slot())
		}
		if len(g.high) < d.high {
			g.backHigh = micros(1 + s.rng.Int64N(2000))
		}
		if len(g.low) < d.low {
			g.backLow = micros(1 + s.rng.Int64N(2000))
		}
		return g, nil
	}
	return s
}

// use spends a permit, releases it, or does neither.
func (s *stock) use(t *testing.T, p *Permit, what int) {
	t.Helper()
	at := p.slot.at
	s.mu.Lock()
	if s.held[at] || s.spent[at] > 0 {
		t.Errorf("slot %d was handed out twice", at)
	}
	s.held[at] = true
	s.mu.Unlock()
	free := func() {
		s.mu.Lock()
		delete(s.held, at)
		s.mu.Unlock()
	}
	switch what {
	case 0:
		free()
		p.Release()
		p.Release()
		if p.Spend() {
			t.Error("a released permit was spent")
		}
	case 1: // two goroutines spend the permit at the same time
		var wg sync.WaitGroup
		spent := make(chan bool, 2)
		for range 2 {
			wg.Go(func() { spent <- p.Spend() })
		}
		wg.Wait()
		first, second := <-spent, <-spent
		if first && second {
			t.Error("a permit was spent twice")
		}
		if first || second {
			s.count(at)
		}
		p.Release()
		free()
	default:
		if p.Spend() {
			s.count(at)
		}
		free()
	}
}

func (s *stock) count(at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spent[at]++
}

func TestAcquire_UsesEachSlotOnce(t *testing.T) {
	s := newStock()
	s.latency = 100 * time.Microsecond
	l, err := newLimiter("nexon", withDay(), s.acquireSlots, withoutLogs(Deps{}))
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(running) }()
	var wg sync.WaitGroup
	for i := range 64 {
		rng := rand.New(rand.NewPCG(uint64(i), 9))
		lane := []schemas.Lane{schemas.High, schemas.Low, schemas.Low}[i%3]
		wg.Go(func() {
			for n := range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				switch rng.IntN(5) {
				case 0:
					ctx, cancel = context.WithTimeout(t.Context(), micros(rng.Int64N(1500)))
				case 1:
					time.AfterFunc(micros(rng.Int64N(500)), cancel)
				}
				acquire := l.Acquire
				if n%7 == 0 {
					acquire = l.Reacquire
				}
				if p, err := acquire(ctx, lane, Call{}); err == nil {
					s.use(t, p, rng.IntN(6))
				}
				cancel()
			}
		})
	}
	wg.Wait()
	left := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.alloc.queues.high.slots) + len(l.alloc.queues.low.slots)
	}
	look := time.NewTicker(5 * ms)
	defer look.Stop()
	for deadline := time.After(10 * time.Second); left() > 0; { // the remaining slots expire, because no caller waits
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("%d slots are unused", left())
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Each unspent slot has expired and was refunded, or its refund is still to be sent. The last
	// call to Redis can have granted slots for which no caller waits any more.
	lapsed := int(testutil.ToFloat64(l.metrics.lapsed))
	if s.most != 1 || len(s.granted) != len(s.spent)+lapsed+left() {
		t.Errorf("%d calls at once; %d slots, %d spent, %d expired", s.most, len(s.granted), len(s.spent), lapsed)
	}
	if n := strings.Count(s.sentEvents(), "refund ") + len(l.alloc.pending.refunds); n > lapsed {
		t.Errorf("%d expired, %d refunded", lapsed, n)
	}
	if l.alloc.queues.high.length+l.alloc.queues.low.length > 0 || l.alloc.queues.high.next() != nil || l.alloc.queues.low.next() != nil {
		t.Errorf("still waiting: %d HIGH, %d LOW", l.alloc.queues.high.length, l.alloc.queues.low.length)
	}
	t.Logf("%d calls for %d slots, %d spent, %d expired", len(s.demands), len(s.granted), len(s.spent), lapsed)
}
