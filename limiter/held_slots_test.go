package limiter

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/schemas"
)

// steadyRedis is a fake Redis that grants 450 LOW slots a second, up to the horizon.
func steadyRedis() *redisDouble {
	r := &redisDouble{latency: ms, start: time.Now()}
	next := int64(0)
	r.answer = func(_ int, d demand) (grant, error) {
		g := grant{now: r.now()}
		for range d.low {
			slot := max(next, g.now)
			if ahead := micros(slot - g.now); ahead > horizon {
				g.backLow = ahead - horizon/2
				break
			}
			next = slot + 1_000_000/450
			g.low = append(g.low, micros(slot-g.now))
		}
		return g, nil
	}
	return r
}

// slowProcess makes calls with 100 goroutines that share one processor. Each call needs the processor
// for the time `job` before it can spend its permit.
type slowProcess struct {
	job  atomic.Int64 // in ns
	sent atomic.Int64
	stop func()
}

func newSlowProcess(t *testing.T, l *Limiter, job time.Duration) *slowProcess {
	ctx, cancel := context.WithCancel(t.Context())
	processor := make(chan struct{}, 1) // goroutines that wait for a channel get it in the order of their arrival
	var wg sync.WaitGroup
	p := &slowProcess{stop: func() { cancel(); wg.Wait() }}
	p.job.Store(int64(job))
	for range 100 {
		wg.Go(func() {
			acquire := l.Acquire
			for {
				permit, err := acquire(ctx, schemas.Low, Call{})
				if err != nil {
					return
				}
				processor <- struct{}{}
				sleep(time.Duration(p.job.Load()))
				<-processor
				acquire = l.Reacquire
				if permit.Spend() {
					p.sent.Add(1)
					acquire = l.Acquire
				}
			}
		})
	}
	return p
}

// callsIn returns the number of calls that the process sends in the time d.
func (p *slowProcess) callsIn(d time.Duration) int {
	before := p.sent.Load()
	elapse(d)
	return int(p.sent.Load() - before)
}

func TestHeldSlots_SlowProcessSpendsMostOfItsPermits(t *testing.T) {
	for _, perSecond := range []int{50, 100, 300} {
		t.Run(fmt.Sprintf("%d calls per second", perSecond), func(t *testing.T) {
			simulated(t, steadyRedis(), func(t *testing.T, l *Limiter) {
				p := newSlowProcess(t, l, time.Second/time.Duration(perSecond))
				defer p.stop()
				p.callsIn(5 * time.Second) // the limit falls
				if got, want := p.callsIn(20*time.Second), 20*perSecond*6/10; got < want {
					t.Errorf("calls in 20 s of a process that can make %d: got %d, want at least %d", 20*perSecond, got, want)
				}
			})
		})
	}
}

func TestHeldSlots_LimitRisesWhenProcessIsFast(t *testing.T) {
	simulated(t, steadyRedis(), func(t *testing.T, l *Limiter) {
		p := newSlowProcess(t, l, 20*ms)
		defer p.stop()
		p.callsIn(20 * time.Second)
		p.job.Store(int64(ms))
		p.callsIn(10 * time.Second)
		if got, want := p.callsIn(10*time.Second), 4490; got < want {
			t.Errorf("calls in 10 s at 450 slots a second: got %d, want at least %d", got, want)
		}
	})
}

func TestHeldSlots_SingleStallSetsNoLimit(t *testing.T) {
	simulated(t, steadyRedis(), func(t *testing.T, l *Limiter) {
		p := newSlowProcess(t, l, ms/2)
		defer p.stop()
		p.callsIn(time.Second)
		p.job.Store(int64(100 * ms))
		elapse(ms)
		p.job.Store(int64(ms / 2))
		p.callsIn(time.Second)
		if lapsed := testutil.ToFloat64(l.metrics.lapsed); lapsed == 0 {
			t.Fatal("expired permits: got 0, want more, because the process paused for 100 ms")
		}
		if l.alloc.queues.held.limited.Load() {
			t.Errorf("limit: got %v, want none", l.alloc.queues.held.limit)
		}
	})
}

func TestHeldSlots_HighTakesTheLimitFirst(t *testing.T) {
	for name, c := range map[string]struct {
		held []schemas.Lane // the lanes of held permits
		want []int          // slots requested for LOW, HIGH, and three queues: HIGH, LOW, LOW
	}{
		"nothing is held":    {nil, []int{1, 4, 1, 0, 0}},
		"one of HIGH":        {[]schemas.Lane{schemas.High}, []int{1, 4, 0, 0, 0}},
		"two of LOW":         {[]schemas.Lane{schemas.Low, schemas.Low}, []int{0, 3, 0, 0, 0}},
		"the limit, no LOW":  {slices.Repeat([]schemas.Lane{schemas.High}, 5), []int{1, 0, 0, 0, 0}},
		"the limit, one LOW": {append(slices.Repeat([]schemas.Lane{schemas.High}, 4), schemas.Low), []int{0, 0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			al, now := allocator{queues: newQueueSet()}, time.Now()
			al.queues.held.limit = 5
			al.queues.held.limited.Store(true)
			for _, lane := range c.held {
				al.queues.held.give(&Permit{queue: al.queues.ofLane(lane), slot: slot{notAfter: now}})
			}
			queues := []*queue{{lane: schemas.High}, {lane: schemas.Low}, {lane: schemas.Low}}
			d := demand{low: 2, high: 4}
			for _, q := range queues {
				d.queues = append(d.queues, queueDemand{q, 7})
			}
			al.limitDemand(&d, now)
			got := []int{d.low, d.high, 0, 0, 0}
			for _, demanded := range d.queues {
				got[2+slices.Index(queues, demanded.q)] = demanded.n
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("requested slots with a limit of 5: got %v, want %v", got, c.want)
			}
		})
	}
}

// A caller can lose a permit, for example in a panic. The lost permits of a limited process must not
// count as held forever.
func TestHeldSlots_LostPermitsAreForgotten(t *testing.T) {
	simulated(t, steadyRedis(), func(t *testing.T, l *Limiter) {
		h := l.alloc.queues.held
		h.limit = 4
		h.limited.Store(true)
		for range 4 {
			mustAcquire(t, l, schemas.Low)
		}
		began := time.Now()
		mustAcquire(t, l, schemas.Low)
		if got := time.Since(began); got < heldTimeout/2 || got > 2*heldTimeout {
			t.Errorf("wait of a fifth caller: got %v, want about %v", got, heldTimeout)
		}
	})
}
