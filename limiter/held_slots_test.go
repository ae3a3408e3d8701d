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
		if l.alloc.queues.low.held.limited.Load() {
			t.Errorf("limit: got %v, want none", l.alloc.queues.low.held.limit)
		}
	})
}

func TestHeldSlots_LimitAppliesToAllQueuesOfLane(t *testing.T) {
	al := allocator{queues: newQueueSet()}
	h := al.queues.low.held
	h.limit = 5
	h.limited.Store(true)
	queueOf := func(lane schemas.Lane) *queue { return &queue{lane: lane, held: al.queues.ofLane(lane).held} }
	d := demand{low: 2, high: 9, queues: []queueDemand{{queueOf(schemas.High), 9}, {queueOf(schemas.Low), 2}, {queueOf(schemas.Low), 7}, {queueOf(schemas.Low), 7}}}
	al.limitDemand(&d, schemas.Low, time.Now())
	got := []int{d.low, d.high}
	for _, q := range d.queues {
		got = append(got, q.n)
	}
	if want := []int{2, 9, 9, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("requested slots (LOW, HIGH, queues) with a limit of 5 for LOW: got %v, want %v", got, want)
	}
}

// A caller can lose a permit, for example in a panic. The lost permits of a limited process must not
// count as held forever.
func TestHeldSlots_LostPermitsAreForgotten(t *testing.T) {
	simulated(t, steadyRedis(), func(t *testing.T, l *Limiter) {
		h := l.alloc.queues.low.held
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
