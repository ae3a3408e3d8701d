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
	source  string
	process string
	name    string // the process', in one word; not that of its life before
	ask     asker
	rdb     redis.UniversalClient // for the live view; nil in tests without Redis
	deps    wants
	log     *slog.Logger
	metrics *metrics
	jitter  *jitter
	readies sync.Pool                 // of waiters' channels, each with room for one and empty
	kick    chan struct{}             // something has changed that Run must look at
	count   chan struct{}             // the day's count is needed
	probing atomic.Bool               // Redis has said that a probing stop is in force
	probed  atomic.Pointer[time.Time] // until when it was, the last time
	breaker atomic.Pointer[breaker]   // the same, to be waited for

	mu    sync.Mutex
	high  queue
	low   queue
	lines []*queue // those two, and one for each class that somebody waits in
	// By what it is charged to, if the source has buckets:
	classes    map[string]*queue
	resources  map[string]string      // the upstream's name for what an endpoint is charged to
	named      []string               // endpoints and resources to be told to the other processes
	tellScopes []happening            // to buckets, for the next call
	halted     map[string]bool        // halts that this process has told of, by their key
	states     map[string]bucketShown // what the script said last of each bucket
	calls      int                    // to Redis with tickets

	asking   bool      // one call at a time: whoever waits meanwhile rides the next
	handover bool      // who was asking leaves the rest to Run
	pause    time.Time // no call before, after a failure
	failed   int       // calls in a row
	quota    Quota
	terms    terms
	renewed  time.Time // when the midnights and the ceiling of terms were
	stopped  bool
	unset    bool     // the settings have not been read yet: no call
	uncount  bool     // the day's count can't be kept: no call
	braking  bool     // a brake is to be told
	report   bool     // the live view is to be told who waits, after the next call
	tells    bool     // and that call is to be made for it
	showing  bool     // the live view is to be told by Run now
	shown    bool     // it was told of somebody
	told     [2]int64 // how many calls were made when it was told last, and the time before
	tell     []string // events for the next call
	refunds  []slot   // slots of which nothing was sent
	clock    clock    // what Redis' clock showed last
	counted  Count    // of the day, as Redis counted last
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

// wants is what the limiter was given and told.
type wants struct {
	Deps
	config Config
}

// New returns the limiter of a source, or an error that says what is wrong with
// its quota.
func New(source string, config Config, deps Deps) (*Limiter, error) {
	return newLimiter(source, config, script(source, deps.Redis), deps)
}

func newLimiter(source string, config Config, ask asker, deps Deps) (*Limiter, error) {
	quota, err := NewQuota(config)
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		source: source, process: deps.Process, name: nameOf(deps.Process), ask: ask, rdb: deps.Redis, deps: wants{deps, config},
		log: deps.Log.With("source", source), metrics: newMetrics(source, deps.Metrics), jitter: &jitter{},
		kick: make(chan struct{}, 1), count: make(chan struct{}, 1),
		high: queue{lane: schemas.High}, low: queue{lane: schemas.Low},
		classes: map[string]*queue{}, resources: map[string]string{}, halted: map[string]bool{}, states: map[string]bucketShown{},
	}
	l.lines = []*queue{&l.high, &l.low}
	l.breaker.Store(newBreaker(false))
	l.readies.New = func() any { return make(chan struct{}, 1) }
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(quota, 0, false)
	l.unset = deps.Settings != nil
	return l, nil
}

// nameOf returns a word for a process in this life of it: one that crashed may have been
// named as it, and its calls are under way yet.
func nameOf(process string) string {
	life := rand.Uint64() //nolint:gosec // not a secret
	return strings.Join(append(strings.Fields(process), strconv.FormatUint(life, 36)), "_")
}

// put makes a quota the one that is asked for. The caller holds l.mu.
func (l *Limiter) put(q Quota, revision int64, stopped bool) {
	l.quota, l.stopped = q, stopped
	l.terms = terms{}
	l.terms.text, l.terms.name = q.encode(revision, stopped)
	l.renew(time.Now())
}

// renewEvery is how often the midnights and the hour are looked up.
const renewEvery = 10 * time.Second

func (l *Limiter) renew(now time.Time) {
	l.renewed = now
	l.terms.midnights, l.terms.ceiling = l.quota.midnights(now), l.quota.ceiling(now)
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

// AcquireAgain is Acquire for a caller whose permit lapsed before it could be
// spent: it goes to the front.
func (l *Limiter) AcquireAgain(ctx context.Context, lane schemas.Lane, c Call) (*Permit, error) {
	return l.acquire(ctx, lane, c, &Permit{}, (*queue).pushFront)
}

func (l *Limiter) acquire(ctx context.Context, lane schemas.Lane, c Call, p *Permit, stand func(*queue, *Permit)) (*Permit, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.limiter, p.since, p.client = l, time.Now(), c.Client
	l.mu.Lock()
	q := l.line(lane, c)
	p.queue = q
	stand(q, p)
	// Whoever comes while nobody asks or waits asks itself, and for all that come
	// meanwhile. In a crowd Run asks: it is woken for what is due anyway.
	leads := false
	var d demand
	if !l.asking {
		d, _ = l.step(p.since)
		leads = d.wanted() && l.mayAsk(p.since) && l.waiting() == 1
		l.asking = leads
	}
	l.mu.Unlock()
	if leads {
		if l.askOnce(d) {
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
	asking := l.asking
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

// Brake stops every process's calls to the source because the upstream refused
// one that was sent then. For how long it said itself; 0: it did not, and the
// brake is as long as the configuration says, and twice the last one if that was
// not long enough. What has been reserved ahead is given up.
func (l *Limiter) Brake(d time.Duration, sent time.Time) {
	l.mu.Lock()
	base := l.quota.brake()
	l.braking = true
	l.tell = append(l.tell, fmt.Sprintf("brake %d %d %d", d.Microseconds(), base.Microseconds(), max(0, l.clock.at(sent))))
	l.giveUp()
	l.mu.Unlock()
	l.metrics.brakes.Inc()
	l.wake()
}

// giveUp gives up what has been reserved ahead. The caller holds l.mu.
func (l *Limiter) giveUp() {
	for _, q := range l.lines {
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
	if s.way != nil {
		l.unsent(s)
	}
	if len(l.quota.rings) > 0 || l.quota.day != nil || l.probing.Load() {
		l.refunds = append(l.refunds, s)
	}
}

// tellMost bounds the events of one call.
const tellMost = 200

// happened returns the events for the next call, which it then has told: an event
// of a call whose outcome is unknown is not told twice. The caller holds l.mu.
func (l *Limiter) happened() string {
	if len(l.tell) == 0 && len(l.refunds) == 0 {
		return ""
	}
	words := l.tell
	l.tell, l.braking = nil, false
	n := min(len(l.refunds), tellMost)
	for _, s := range l.refunds[:n] {
		words = append(words, fmt.Sprintf("refund %d", s.at))
	}
	l.refunds = l.refunds[n:]
	return strings.Join(words, " ")
}

// happenedTo returns what has happened to buckets, for the next call. The caller holds
// l.mu.
func (l *Limiter) happenedTo() []happening {
	n := min(len(l.tellScopes), tellMost)
	told := slices.Clone(l.tellScopes[:n])
	l.tellScopes = l.tellScopes[n:]
	return told
}
