package limiter

import (
	"container/list"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

// Limiter gives out the permits of one source to one process. Its methods may be
// called concurrently; nothing is given out unless Run runs.
type Limiter struct {
	ask     asker
	log     *slog.Logger
	metrics *metrics
	kick    chan struct{} // something has changed that Run must look at

	mu    sync.Mutex
	high  queue
	low   queue
	brake time.Duration // to be told to Redis
}

// queue is one lane's side of this process.
type queue struct {
	lane    schemas.Lane
	waiters list.List // of *waiter, the next one first
	slots   []slot    // granted by Redis and not yet given out, the earliest first
	back    time.Time // Redis asked to come back then for more
}

// slot is a reserved time slot, by the local monotonic clock: it may be used
// from notBefore, when it has certainly come, until notAfter, when it may have
// lapsed.
type slot struct{ notBefore, notAfter time.Time }

type waiter struct {
	since  time.Time
	permit chan *Permit // has room for one
}

// New returns the limiter of a source whose lanes are kept in rdb. The client
// must obey context deadlines (redis.Options.ContextTimeoutEnabled).
func New(source string, lanes Lanes, rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Limiter {
	return newLimiter(source, script(source, lanes, rdb), log, reg)
}

func newLimiter(source string, ask asker, log *slog.Logger, reg prometheus.Registerer) *Limiter {
	return &Limiter{
		ask: ask, log: log.With("source", source), metrics: newMetrics(source, reg),
		kick: make(chan struct{}, 1),
		high: queue{lane: schemas.High}, low: queue{lane: schemas.Low},
	}
}

// Permit is the right to send one call. It lapses within permitLife.
type Permit struct {
	limiter *Limiter
	queue   *queue
	slot    slot
	used    bool // guarded by limiter.mu
}

// Acquire waits until one call may be sent in the lane, behind those that wait
// already. It fails only when ctx ends.
func (l *Limiter) Acquire(ctx context.Context, lane schemas.Lane) (*Permit, error) {
	return l.acquire(ctx, lane, false)
}

// AcquireAgain is Acquire for a caller whose permit lapsed before it could be
// spent: it goes to the front.
func (l *Limiter) AcquireAgain(ctx context.Context, lane schemas.Lane) (*Permit, error) {
	return l.acquire(ctx, lane, true)
}

func (l *Limiter) acquire(ctx context.Context, lane schemas.Lane, first bool) (*Permit, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	q := &l.low
	if lane == schemas.High {
		q = &l.high
	}
	w := &waiter{since: time.Now(), permit: make(chan *Permit, 1)}
	l.mu.Lock()
	var place *list.Element
	if first {
		place = q.waiters.PushFront(w)
	} else {
		place = q.waiters.PushBack(w)
	}
	l.mu.Unlock()
	l.wake()

	select {
	case p := <-w.permit:
		return p, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	q.waiters.Remove(place)
	l.mu.Unlock()
	select {
	case p := <-w.permit: // given at the same moment
		p.Release()
	default:
		l.wake()
	}
	return nil, context.Cause(ctx)
}

func (l *Limiter) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Spend reports whether the call may be sent now, and if so uses the permit up.
// A permit that has lapsed, or was spent or released before, may not be used.
func (p *Permit) Spend() bool {
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if p.used || now.Before(p.slot.notBefore) {
		return false
	}
	p.used = true
	if now.After(p.slot.notAfter) {
		l.metrics.lapsed.Inc()
		return false
	}
	l.metrics.acquired[p.queue.lane].Inc()
	return true
}

// Release hands a permit that was not spent to the next waiter. After Spend it
// does nothing.
func (p *Permit) Release() {
	l := p.limiter
	l.mu.Lock()
	if !p.used {
		p.used = true
		p.queue.slots = append([]slot{p.slot}, p.queue.slots...)
	}
	l.mu.Unlock()
	l.wake()
}

// Brake stops every process's calls to the source for a time, because the
// upstream asked for it. What has been reserved ahead is given up.
func (l *Limiter) Brake(d time.Duration) {
	l.mu.Lock()
	l.brake = max(l.brake, d)
	for _, q := range []*queue{&l.high, &l.low} {
		q.slots = nil
		if back := time.Now().Add(d - horizon); back.After(q.back) {
			q.back = back
		}
	}
	l.mu.Unlock()
	l.metrics.brakes.Inc()
	l.wake()
}
