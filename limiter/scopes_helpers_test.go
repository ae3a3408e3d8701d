package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source/announced"
)

// callers is a set of processes in a synctest bubble. They share one Redis and call one upstream.
type callers struct {
	*testing.T
	redis   *miniredis.Miniredis
	out     *outside
	run     acquireFunc
	wakeUps *wakeUpRecorder
	config  Config
	members []*member

	mu      sync.Mutex // guards the fields below and Redis
	far     time.Duration
	ahead   time.Duration // how far Redis' clock is ahead of the simulated time
	fails   func() (before, after bool)
	answers upstream
	calls   []sentCall
	chance  *rand.Rand
}

// upstream returns the answer to a call that arrives now. The answer contains the duration of the
// response.
type upstream func(c atUpstream) answered

type atUpstream struct {
	call       Call
	credential string
	at         time.Time
}

type answered struct {
	status  int
	notices []announced.Notice
	takes   time.Duration
	refused bool
	then    func() // function that the test calls at the time of the response; nil means none
}

type sentCall struct {
	atUpstream
	lane    schemas.Lane
	refused bool
}

// member is one process with its limiter.
type member struct {
	limiter *Limiter
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// inCallers runs the test in a synctest bubble with n processes and one Redis.
func inCallers(t *testing.T, seed uint64, n int, config Config, answers upstream, test func(f *callers)) {
	t.Helper()
	_, m := servicetest.MiniRedis(t)
	run, out, wakeUps := script("s", slowClient(t, m.Addr())), newOutside(t), newWakeUpRecorder(t, m)
	synctest.Test(t, func(t *testing.T) {
		f := &callers{
			T: t, chance: rand.New(rand.NewPCG(seed, 2)), redis: m, out: out, run: run, wakeUps: wakeUps, config: config,
			answers: answers, far: 30 * ms, fails: func() (before, after bool) { return false, false },
		}
		for range n {
			f.begin()
		}
		test(f)
		for _, m := range f.members {
			m.end()
		}
	})
}

func (m *member) end() {
	m.stop()
	m.wg.Wait()
}

// begin starts a process.
func (f *callers) begin() *member {
	m := &member{}
	m.ctx, m.stop = context.WithCancel(f.Context())
	deps := withoutLogs(Deps{})
	deps.Process = fmt.Sprintf("m%d", len(f.members))
	l, err := newLimiter("s", f.config, func(_ context.Context, d demand) (g grant, err error) {
		sleep(f.span(200*time.Microsecond, time.Millisecond))
		f.mu.Lock()
		before, after := f.fails()
		if before {
			f.mu.Unlock()
			return g, errors.New("Redis can't be reached")
		}
		now := time.Now().Add(f.ahead)
		var woken []string
		f.out.do(func() {
			f.redis.SetTime(now)
			g, err = f.run(context.Background(), d)
			woken = f.wakeUps.take()
		})
		members := f.members
		f.mu.Unlock()
		if err != nil {
			f.Errorf("script error: %v", err)
		}
		sleep(f.span(200*time.Microsecond, time.Millisecond))
		for _, name := range woken {
			for _, m := range members {
				m.limiter.onWakeUp(name)
			}
		}
		if after {
			return grant{}, errors.New("Redis' answer was lost")
		}
		return g, err
	}, deps)
	if err != nil {
		f.Fatal(err)
	}
	m.limiter = l
	f.mu.Lock()
	f.members = append(f.members, m)
	f.mu.Unlock()
	m.wg.Go(func() { _ = l.Run(m.ctx) })
	return m
}

// flushed deletes all keys of Redis, so that the limiters lose their state.
func (f *callers) flushed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out.do(f.redis.FlushAll)
}

// passed waits in simulated time, and lets keys of Redis expire.
func (f *callers) passed(d time.Duration) {
	for step := 250 * ms; d > 0; d -= step {
		elapse(min(d, step))
		f.mu.Lock()
		f.out.do(func() { f.redis.FastForward(min(d, step)) })
		f.mu.Unlock()
	}
}

func (f *callers) span(from, to time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return from + time.Duration(f.chance.Int64N(int64(to-from)+1))
}

// read returns the value *v, which the upstream's handlers write at the same time. It holds f.mu
// while it reads.
func read[T any](f *callers, v *T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *v
}

// wait starts n callers in a process. Each makes calls one after the other.
func (f *callers) wait(m *member, n int, lane schemas.Lane, call Call) {
	for range n {
		m.wg.Go(func() {
			for m.ctx.Err() == nil {
				f.one(m, lane, call)
			}
		})
	}
}

// one makes one call. It returns early if its process ends.
func (f *callers) one(m *member, lane schemas.Lane, call Call) (a answered, credential string) {
	p, err := m.limiter.Acquire(m.ctx, lane, call)
	if err != nil {
		return a, ""
	}
	for !p.Spend() {
		if p, err = m.limiter.Reacquire(m.ctx, lane, call); err != nil {
			return a, ""
		}
	}
	sleep(f.span(0, 5*ms)) // network delay within the configured jitter
	f.mu.Lock()
	at := atUpstream{call, p.Credential(), time.Now()}
	a = f.answers(at)
	f.calls = append(f.calls, sentCall{at, lane, a.refused})
	f.mu.Unlock()
	timer := time.NewTimer(a.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.ctx.Done(): // the process has crashed, but the upstream continues with the call
		<-timer.C
		f.made(a)
		return a, ""
	}
	f.made(a)
	sleep(f.span(0, f.far))
	p.ReportEnd(a.status, a.notices, refusedIf(a.status))
	if a.status == 200 {
		p.ReportSuccess()
	}
	return a, p.Credential()
}

func (f *callers) made(a answered) {
	if a.then != nil {
		f.mu.Lock()
		a.then()
		f.mu.Unlock()
	}
}

// since returns the calls since `from`, and how many of these calls the upstream refused.
func (f *callers) since(from time.Time) (all []sentCall, refused int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if !c.at.Before(from) {
			all = append(all, c)
			if c.refused {
				refused++
			}
		}
	}
	return all, refused
}

// reportOf returns a notice, as a response contains it, that the policy has this number of units left.
func reportOf(policy string, left int64, reset, slack time.Duration) announced.Notice {
	return announced.Notice{Policy: policy, Limit: announced.Unknown, Remaining: left, Cost: announced.Unknown, Reset: reset, Slack: slack}
}

// refusedIf returns a function that reports whether a response with this status is a refusal.
func refusedIf(status int) func() bool { return func() bool { return status == 429 } }

// bucketCalls calls the script for queues with scoped buckets. Each call requests one slot of each queue.
type bucketCalls struct {
	acquire acquireFunc
	demand  demand
	calls   atomic.Int64
}

func newBucketCalls(tb testing.TB, rdb redis.UniversalClient, source string, policies []Policy, queues int) *bucketCalls {
	tb.Helper()
	config := scopedConfig(policies...)
	config.Lease, config.Breakers = time.Minute, nil // a breaker would be one more bucket
	l, err := New(source, config, withoutLogs(Deps{Redis: rdb}))
	if err != nil {
		tb.Fatal(err)
	}
	c := &bucketCalls{acquire: script(source, rdb), demand: demand{terms: l.alloc.active.terms, process: "p"}}
	for i := range queues {
		q := l.alloc.queueFor(schemas.Low, Call{Endpoint: fmt.Sprintf("f/%d", i), Key: "k", Credentials: []string{"c"}})
		c.demand.queues = append(c.demand.queues, queueDemand{q, 1})
	}
	return c
}

func (c *bucketCalls) call(ctx context.Context) error {
	d := c.demand
	d.tickets = fmt.Sprintf("p.%d.", c.calls.Add(1))
	_, err := c.acquire(ctx, d)
	return err
}

// eightBuckets returns eight policies that reject no call.
func eightBuckets() (all []Policy) {
	for i := range 8 {
		all = append(all, Policy{Name: fmt.Sprintf("bucket-%d", i), Limit: 100000, Restore: 100000, Unit: "points", Scope: "{endpoint}"})
	}
	return all
}
