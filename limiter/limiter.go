package limiter

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
)

// Limiter gives out the permits of one source to one process. Its methods may be
// called concurrently; permits flow while Run runs.
type Limiter struct {
	source           string
	process          string
	name             string // the process', in one word; not that of its life before
	acquireSlots     acquireFunc
	rdb              redis.UniversalClient // for the live view; nil in tests without Redis
	deps             dependencies
	log              *slog.Logger
	metrics          *metrics
	jitter           *jitter
	readies          sync.Pool                 // of waiters' channels, each with room for one and empty
	kick             chan struct{}             // something has changed that Run must look at
	dayCountNeeded   chan struct{}             // the day's count is needed
	breakerOpen      atomic.Bool               // Redis has said that a probing stop is in force
	breakerOpenUntil atomic.Pointer[time.Time] // until when it was, the last time
	breaker          atomic.Pointer[breaker]   // the same, to be waited for

	mu     sync.Mutex
	high   queue
	low    queue
	queues []*queue // those two, and one for each class that somebody waits in
	// By what it is charged to, if the source has buckets:
	queueByKey   map[string]*queue
	resources    map[string]string         // the upstream's name for what an endpoint is charged to
	newResources []string                  // endpoints and resources to be told to the other processes
	bucketEvents []bucketEvent             // to buckets, for the next call
	openBreakers map[string]bool           // halts that this process has told of, by their key
	states       map[string]bucketSnapshot // what the script said last of each bucket
	calls        int                       // to Redis with tickets

	calling          bool      // one call at a time: whoever waits meanwhile rides the next
	handover         bool      // who was asking leaves the rest to Run
	pause            time.Time // no call before, after a failure
	failed           int       // calls in a row
	quota            Quota
	terms            terms
	renewed          time.Time // when the midnights and the rate cap of terms were
	stopped          bool
	settingsUnread   bool     // the settings have not been read yet: no call
	dayCountUnsaved  bool     // the day's count can't be kept: no call
	backoffPending   bool     // a brake is to be told
	reportWanted     bool     // the live view is to be told who waits, after the next call
	reportForcesCall bool     // and that call is to be made for it
	reportDue        bool     // the live view is to be told by Run now
	reportedWaiters  bool     // it was told of somebody
	lastReports      [2]int64 // how many calls were made when it was told last, and the time before
	events           []string // events for the next call
	refunds          []slot   // slots of which nothing was sent
	clock            clock    // what Redis' clock showed last
	counted          Count    // of the day, as Redis counted last
}

// Deps is what a Limiter is given.
type Deps struct {
	// Redis must obey context deadlines (redis.Options.ContextTimeoutEnabled).
	Redis redis.UniversalClient
	// Settings may be nil: the quota is as configured.
	Settings Settings
	// Usage may be nil: what a day has used is known by Redis alone.
	Usage Usage
	// Process tells the processes apart in the live view.
	Process string
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// dependencies is what the limiter was given and told.
type dependencies struct {
	Deps
	config Config
}

// New returns the limiter of a source, or an error that says what is wrong with
// its quota.
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

// incarnationName returns a word for a process in this life of it: one that crashed may have been
// named as it, and its calls are under way yet.
func incarnationName(process string) string {
	life := rand.Uint64() //nolint:gosec // not a secret
	return strings.Join(append(strings.Fields(process), strconv.FormatUint(life, 36)), "_")
}

// setQuota makes a quota the one that is asked for. The caller holds l.mu.
func (l *Limiter) setQuota(q Quota, revision int64, stopped bool) {
	l.quota, l.stopped = q, stopped
	l.terms = terms{}
	l.terms.text, l.terms.name = q.encode(revision, stopped)
	l.renewClockTerms(time.Now())
}

// clockTermsInterval is how often the midnights and the hour are looked up.
const clockTermsInterval = 10 * time.Second

func (l *Limiter) renewClockTerms(now time.Time) {
	l.renewed = now
	l.terms.midnights, l.terms.rateCap = l.quota.midnights(now), l.quota.encodeRateCap(now)
}

// Acquire waits until that call may be sent in the lane. Clients are served in turn, and
// the calls of one client first come, first served. It fails only when ctx ends.
func (l *Limiter) Acquire(ctx context.Context, lane schemas.Lane, c Call) (*Permit, error) {
	return l.acquire(ctx, lane, c, &Permit{}, (*queue).push)
}

// AcquireRetry is Acquire for a caller whose last call failed: while others wait, whenever
// they came, no more than every fourth permit is for such callers.
func (l *Limiter) AcquireRetry(ctx context.Context, lane schemas.Lane, c Call) (*Permit, error) {
	return l.acquire(ctx, lane, c, &Permit{retry: true}, (*queue).push)
}

// Reacquire is Acquire for a caller whose permit lapsed before it could be
// spent: it goes to the front.
func (l *Limiter) Reacquire(ctx context.Context, lane schemas.Lane, c Call) (*Permit, error) {
	return l.acquire(ctx, lane, c, &Permit{}, (*queue).pushFront)
}

func (l *Limiter) acquire(ctx context.Context, lane schemas.Lane, c Call, p *Permit, stand func(*queue, *Permit)) (*Permit, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.limiter, p.since, p.client = l, time.Now(), c.Client
	l.mu.Lock()
	q := l.queueFor(lane, c)
	p.queue = q
	stand(q, p)
	// Whoever comes while nobody asks or waits asks itself, and for all that come
	// meanwhile. In a crowd Run asks: it is woken for what is due anyway.
	leads := false
	var d demand
	if !l.calling {
		d, _ = l.step(p.since)
		leads = d.needed() && l.canCallRedis(p.since) && l.waiting() == 1
		l.calling = leads
	}
	l.mu.Unlock()
	if leads {
		if l.callRedis(d) {
			l.mu.Lock()
			l.handover = true // Run asks for the others
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
	if !asking { // Run must see to it; who asks will find it by himself
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

// BackOff stops every process's calls to the source because the upstream refused
// one that was sent then. For how long it said itself; 0: it did not, and the
// brake is as long as the configuration says, and twice the last one if that was
// not long enough. What has been reserved ahead is given up.
func (l *Limiter) BackOff(d time.Duration, sent time.Time) {
	l.mu.Lock()
	base := l.quota.initialBackoff()
	l.backoffPending = true
	l.events = append(l.events, fmt.Sprintf("backoff %d %d %d", d.Microseconds(), base.Microseconds(), max(0, l.clock.at(sent))))
	l.releaseSlots()
	l.mu.Unlock()
	l.metrics.backoffs.Inc()
	l.wake()
}

// releaseSlots gives up what has been reserved ahead. The caller holds l.mu.
func (l *Limiter) releaseSlots() {
	for _, q := range l.queues {
		for _, s := range q.slots {
			l.refund(s)
		}
		q.slots = nil
	}
}

// refund takes back a slot of which nothing was sent, where that makes room for
// another: time that has passed does not, but for that of a probe. The caller
// holds l.mu.
func (l *Limiter) refund(s slot) {
	if s.candidate != nil {
		l.refundBuckets(s)
	}
	if len(l.quota.windowLogs) > 0 || l.quota.day != nil || l.breakerOpen.Load() {
		l.refunds = append(l.refunds, s)
	}
}

// maxEvents bounds the events of one call.
const maxEvents = 200

// takeEvents returns the events for the next call, which it then has told: an event
// of a call whose outcome is unknown is not told twice. The caller holds l.mu.
func (l *Limiter) takeEvents() string {
	if len(l.events) == 0 && len(l.refunds) == 0 {
		return ""
	}
	words := l.events
	l.events, l.backoffPending = nil, false
	n := min(len(l.refunds), maxEvents)
	for _, s := range l.refunds[:n] {
		words = append(words, fmt.Sprintf("refund %d", s.at))
	}
	l.refunds = l.refunds[n:]
	return strings.Join(words, " ")
}

// takeBucketEvents returns what has happened to buckets, for the next call. The caller holds
// l.mu.
func (l *Limiter) takeBucketEvents() []bucketEvent {
	n := min(len(l.bucketEvents), maxEvents)
	told := slices.Clone(l.bucketEvents[:n])
	l.bucketEvents = l.bucketEvents[n:]
	return told
}
