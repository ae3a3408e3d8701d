package limiter

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

// Limiter hands out the permits of one source in one process. Its methods are safe for
// concurrent use. Permits are granted only while Run runs.
type Limiter struct {
	source           string
	process          string
	name             string // unique name of this start of the process, without spaces
	acquireSlots     acquireFunc
	rdb              redis.UniversalClient // for reports and the view; nil in tests without Redis
	deps             dependencies
	log              *slog.Logger
	metrics          *metrics
	jitter           *jitter
	readies          sync.Pool                 // reusable ready channels of waiters, with capacity 1
	kick             chan struct{}             // wakes Run
	dayCountNeeded   chan struct{}             // makes the follower send the saved day count to Redis
	breakerOpen      atomic.Bool               // the source's circuit breaker, as Redis reported it last
	breakerOpenUntil atomic.Pointer[time.Time] // when the breaker was last known to be open
	breaker          atomic.Pointer[breaker]   // the breaker's state, for callers that wait until it changes

	mu     sync.Mutex
	high   queue
	low    queue
	queues []*queue // high, low, and one for each queue key that has waiters
	// For sources with buckets:
	queueByKey   map[string]*queue
	resources    map[string]string         // maps an endpoint to the upstream's name for its budget
	newResources []string                  // new endpoint-resource pairs, not yet shared with the other processes
	openBreakers map[string]bool           // scope breakers that this process opened, by bucket key
	states       map[string]bucketSnapshot // last state of each bucket, by name
	calls        int                       // number of calls to Redis so far; part of each ticket

	calling          bool      // a call to Redis is in flight; later callers share the next one
	handover         bool      // a caller of Acquire leaves further calls to Redis to Run
	pause            time.Time // no call to Redis before this time, because the last one failed
	failed           int       // consecutive failed calls to Redis
	quota            Quota
	terms            terms
	renewed          time.Time // when terms.midnights and terms.rateCap were computed
	stopped          bool
	settingsUnread   bool     // no settings were read yet, so no permit is granted
	dayCountUnsaved  bool     // the day's count can't be saved, so no permit is granted
	reportWanted     bool     // publish a report after the next call to Redis
	reportForcesCall bool     // if a report is wanted, call Redis even if no slot is needed
	reportDue        bool     // Run must publish a report now
	reportedWaiters  bool     // the last report contained waiters
	lastReports      [2]int64 // slots granted to this process, at its last two reports
	pending          pendingEvents
	clock            clock // last reading of Redis' clock
	counted          Count // the day's count, as Redis reported it last
}

// Deps are the dependencies of a Limiter.
type Deps struct {
	// Redis must respect context deadlines (redis.Options.ContextTimeoutEnabled).
	Redis redis.UniversalClient
	// Settings can be nil: then the quota is the configured one.
	Settings Settings
	// Usage can be nil: then the count of a day is kept in Redis only.
	Usage Usage
	// Process is the name of the process in the view.
	Process string
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// dependencies are the arguments of New.
type dependencies struct {
	Deps
	config Config
}

// New returns the limiter of a source, or the error of NewQuota.
func New(source string, config Config, deps Deps) (*Limiter, error) {
	return newLimiter(source, config, script(source, deps.Redis), deps)
}

func newLimiter(source string, config Config, ask acquireFunc, deps Deps) (*Limiter, error) {
	quota, err := NewQuota(config)
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		source: source, process: deps.Process, name: incarnationName(deps.Process), acquireSlots: ask, rdb: deps.Redis, deps: dependencies{deps, config},
		log: deps.Log.With("source", source), metrics: newMetrics(source, deps.Metrics), jitter: &jitter{},
		kick: make(chan struct{}, 1), dayCountNeeded: make(chan struct{}, 1),
		high: queue{lane: schemas.High}, low: queue{lane: schemas.Low},
		queueByKey: map[string]*queue{}, resources: map[string]string{}, openBreakers: map[string]bool{}, states: map[string]bucketSnapshot{},
	}
	l.queues = []*queue{&l.high, &l.low}
	l.breaker.Store(newBreaker(false))
	l.readies.New = func() any { return make(chan struct{}, 1) }
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setQuota(quota, 0, false)
	l.settingsUnread = deps.Settings != nil
	return l, nil
}

// incarnationName returns a name that is unique to this start of the process. A process that
// crashed can have had the same name, and its calls can still be in flight.
func incarnationName(process string) string {
	life := rand.Uint64() //nolint:gosec // not a secret
	return strings.Join(append(strings.Fields(process), strconv.FormatUint(life, 36)), "_")
}

// setQuota replaces the quota that the next call to Redis sends. The caller holds l.mu.
func (l *Limiter) setQuota(q Quota, revision int64, stopped bool) {
	l.quota, l.stopped = q, stopped
	l.terms = terms{}
	l.terms.text, l.terms.name = q.encode(revision, stopped)
	l.renewClockTerms(time.Now())
}

// clockTermsInterval is how often the midnights and the rate cap are computed again.
const clockTermsInterval = 10 * time.Second

func (l *Limiter) renewClockTerms(now time.Time) {
	l.renewed = now
	l.terms.midnights, l.terms.rateCap = l.quota.midnights(now), l.quota.encodeRateCap(now)
}

// Acquire waits until the call can be sent, and returns its permit. Clients take turns; the
// calls of one client are served in order. It fails only if ctx ends.
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
	return l.acquire(ctx, lane, c, &Permit{}, (*queue).pushFront)
}

func (l *Limiter) acquire(ctx context.Context, lane schemas.Lane, c Call, p *Permit, insert func(*queue, *Permit)) (*Permit, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.limiter, p.since, p.client = l, time.Now(), c.Client
	l.mu.Lock()
	q := l.queueFor(lane, c)
	p.queue = q
	insert(q, p)
	// A caller that waits alone calls Redis itself. If several callers wait, Run makes one call
	// for all of them, because Run wakes up for the next slot anyway.
	makesCall := false
	var d demand
	if !l.calling {
		d, _ = l.step(p.since)
		makesCall = d.needed() && l.canCallRedis(p.since) && l.waiting() == 1
		l.calling = makesCall
	}
	l.mu.Unlock()
	if makesCall {
		if l.callRedis(d) {
			l.mu.Lock()
			l.handover = true // Run makes the further calls to Redis for the other waiters
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
	asking := l.calling
	l.mu.Unlock()
	if !asking { // if a call to Redis is in flight, its end starts the next one, which serves this waiter
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
// Config.Backoff, or twice as long as the last pause if that ended shortly before. Slots that this
// process has reserved are released.
func (l *Limiter) BackOff(d time.Duration, sent time.Time) {
	l.mu.Lock()
	base := l.quota.initialBackoff()
	l.pending.pause = true
	l.pending.ofSource = append(l.pending.ofSource, backoffEvent(d, base, max(0, l.clock.at(sent))))
	l.releaseSlots()
	l.mu.Unlock()
	l.metrics.backoffs.Inc()
	l.wake()
}

// releaseSlots gives up all slots that this process has reserved but not yet handed to a caller.
// The caller holds l.mu.
func (l *Limiter) releaseSlots() {
	for _, q := range l.queues {
		for _, s := range q.slots {
			l.refund(s)
		}
		q.slots = nil
	}
}

// refund returns an unused slot to Redis if another call can use it. In a source with GCRA
// partitions only, a past slot makes no room, so slots are returned only while the breaker is
// open: then each slot is a probe. The caller holds l.mu.
func (l *Limiter) refund(s slot) {
	if s.candidate != nil {
		l.refundBuckets(s)
	}
	if len(l.quota.windowLogs) > 0 || l.quota.day != nil || l.breakerOpen.Load() {
		l.pending.refunds = append(l.pending.refunds, s)
	}
}
