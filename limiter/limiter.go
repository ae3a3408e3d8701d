package limiter

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

// Limiter hands out the permits of one source in one process. Its methods are safe for
// concurrent use. Permits are granted only while Run runs.
type Limiter struct {
	source       string
	name         string // unique name of this start of the process, without spaces
	acquireSlots acquireFunc
	deps         dependencies
	log          *slog.Logger
	metrics      *metrics
	jitter       *jitter
	readies      sync.Pool     // pool of the channels Permit.ready, each with capacity 1
	kick         chan struct{} // channel whose messages wake Run

	mu      sync.Mutex
	alloc   allocator
	redis   redisCalls
	reports reporter
}

// Deps are the dependencies of a Limiter.
type Deps struct {
	// Redis must respect context deadlines (redis.Options.ContextTimeoutEnabled).
	Redis redis.UniversalClient
	// Settings can be nil: then the quota is the configured one.
	Settings Settings
	// Usage can be nil: then the count of a day is kept in Redis only.
	Usage Usage
	// Unused says that the source was never called, because Redis and the database were created a
	// moment ago for this process alone. Then the first call needs no quiet period. If Unused is false
	// and Redis has no state, the state counts as lost.
	Unused bool
	// Process is the name of this process in its report (ProcessView.Process).
	Process string
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// dependencies are Deps together with the configuration of the quota.
type dependencies struct {
	Deps
	config Config
}

// New returns the limiter of a source, or the error of NewQuota.
func New(source string, config Config, deps Deps) (*Limiter, error) {
	return newLimiter(source, config, script(source, deps.Redis), deps)
}

func newLimiter(source string, config Config, acquire acquireFunc, deps Deps) (*Limiter, error) {
	quota, err := NewQuota(config)
	if err != nil {
		return nil, err
	}
	log, metrics := deps.Log.With("source", source), newMetrics(source, deps.Metrics)
	l := &Limiter{
		source: source, name: incarnationName(deps.Process), acquireSlots: acquire, deps: dependencies{deps, config},
		log: log, metrics: metrics, jitter: &jitter{}, kick: make(chan struct{}, 1),
		alloc: allocator{
			queues: newQueueSet(), buckets: newBucketTable(source), day: dayCount{needed: make(chan struct{}, 1)}, log: log, metrics: metrics,
		},
	}
	l.reports.limiter = l
	l.alloc.breaker.period.Store(newBreakerPeriod(false))
	l.readies.New = func() any { return make(chan struct{}, 1) }
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alloc.setQuota(quota, 0, false)
	l.alloc.active.unread = deps.Settings != nil
	if deps.Unused {
		l.alloc.pending.add(unusedEvent())
	}
	return l, nil
}

// incarnationName returns a name that is unique to this start of the process. A process that
// crashed can have had the same name, and its calls can still be in flight.
func incarnationName(process string) string {
	life := rand.Uint64() //nolint:gosec // not a secret
	return strings.Join(append(strings.Fields(process), strconv.FormatUint(life, 36)), "_")
}

// Acquire waits until the call can be sent, and returns its permit. Clients take turns; the
// calls of one client are served in order. The caller must call Spend or Release. Acquire returns an
// error only if ctx ends.
func (l *Limiter) Acquire(ctx context.Context, lane schemas.Lane, c Call) (*Permit, error) {
	return l.acquire(ctx, lane, c, &Permit{}, (*queue).push)
}

// AcquireRetry waits for a permit like Acquire, for a caller whose last upstream call failed.
// While other callers wait, callers of AcquireRetry get at most every fourth permit.
func (l *Limiter) AcquireRetry(ctx context.Context, lane schemas.Lane, c Call) (*Permit, error) {
	return l.acquire(ctx, lane, c, &Permit{retry: true}, (*queue).push)
}

// Reacquire waits for a permit like Acquire, for a caller whose permit expired before it was
// spent. This caller is served before all other waiters.
func (l *Limiter) Reacquire(ctx context.Context, lane schemas.Lane, c Call) (*Permit, error) {
	return l.acquire(ctx, lane, c, &Permit{again: true}, (*queue).pushFront)
}

func (l *Limiter) acquire(ctx context.Context, lane schemas.Lane, c Call, p *Permit, insert func(*queue, *Permit)) (*Permit, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.limiter, p.since, p.client = l, time.Now(), c.Client
	l.mu.Lock()
	q := l.alloc.queueFor(lane, c)
	p.queue = q
	insert(q, p)
	// A caller that waits alone calls Redis itself. If several callers wait, Run makes one call
	// for all of them, because Run wakes up for the next slot anyway.
	makesCall := false
	var d demand
	if !l.redis.calling {
		d, _ = l.alloc.step(p.since)
		makesCall = d.needed() && l.canCallRedis(p.since) && l.alloc.queues.waiting() == 1
		l.redis.calling = makesCall
	}
	l.mu.Unlock()
	if makesCall {
		if l.callRedis(d) {
			l.mu.Lock()
			l.redis.handover = true // Run makes the further calls to Redis for the other waiters
			l.mu.Unlock()
			l.wake()
		}
	}
	l.mu.Lock()
	if p.given {
		l.mu.Unlock()
		return p, nil
	}
	p.ready = l.readies.Get().(chan struct{})
	calling := l.redis.calling
	l.mu.Unlock()
	if !calling { // if calling is true, a call to Redis is in flight; another call follows it and serves this waiter
		l.wake()
	}
	select {
	case <-p.ready:
		l.readies.Put(p.ready)
		return p, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	if !p.given {
		p.queue.remove(p)
	}
	l.mu.Unlock()
	if p.given {
		p.Release()
	} else {
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

// BackOff pauses the calls of every process, because the upstream refused a call sent at the time
// `sent`. The pause lasts d, the upstream's Retry-After. With d == 0 it lasts as long as
// Config.Backoff, or twice as long as the last pause if that pause ended shortly before. After the
// pause one permit is granted, the probe (Permit.IsSourceProbe). If ReportEnd reports that the upstream
// has not refused the probe, the rate rises from half to full within ten seconds. If the probe is
// refused, the next pause is at least twice as long as the last pause, up to a minute. Slots that this
// process has reserved are released.
func (l *Limiter) BackOff(d time.Duration, sent time.Time) {
	l.mu.Lock()
	base := l.alloc.active.quota.initialBackoff()
	l.alloc.pending.pause = true
	l.alloc.pending.add(backoffEvent(d, base, max(0, l.alloc.clock.at(sent))))
	l.alloc.releaseSlots()
	l.mu.Unlock()
	l.metrics.backoffs.Inc()
	l.wake()
}
