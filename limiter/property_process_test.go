package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// outside runs functions outside of a bubble, where there are sockets. The
// bubble's time stands still meanwhile, for the channels are not its own.
type outside struct {
	mu   sync.Mutex
	work chan func()
	done chan struct{}
}

func newOutside(t *testing.T) *outside {
	o := &outside{work: make(chan func()), done: make(chan struct{})}
	go func() {
		for f := range o.work {
			f()
			o.done <- struct{}{}
		}
	}()
	t.Cleanup(func() { close(o.work) })
	return o
}

func (o *outside) do(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.work <- f
	<-o.done
}

// slowRedis lets a command outlive its context: real time must decide nothing.
type slowRedis struct{}

func (slowRedis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (slowRedis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(context.WithoutCancel(ctx), cmd) }
}

func (slowRedis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// slowClient returns a client for which no real time is too long: a machine that is
// busy with something else must fail no run.
func slowClient(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: time.Hour, ReadTimeout: -1})
	rdb.AddHook(slowRedis{})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// world is one run: a Redis, processes that share it, and what they did.
type world struct {
	seed    uint64
	rng     *rand.Rand // the driver's; each process and waiter has a stream of its own
	trial   trial
	source  string
	redis   *miniredis.Miniredis
	script  acquireFunc
	outside *outside
	usage   bool // the day's count outlives Redis
	fails   int  // of a thousand calls to Redis, and of a hundred to the counts
	manners int  // of a thousand permits that many are dealt with badly, of each sort
	demand  struct {
		high, low int           // waiters of a process
		think     time.Duration // of HIGH, on the average
	}
	wg sync.WaitGroup

	// The driver's alone.
	start, calm, over, midnight, noBegin time.Time
	processes                            []*process
	begun                                int
	override                             Override
	braked                               bool

	mu          sync.Mutex
	skew        time.Duration // of Redis' clock
	unreachable time.Time     // Redis is, until then
	states      []state
	settings    []setting
	count       Count
	record
}

type state struct {
	at     time.Time
	text   string
	newest int // the newest setting it knows of
}

// setting is what was set, and when.
type setting struct {
	at       time.Time
	config   Config
	override Override
}

func newWorld(t *testing.T, seed uint64) *world {
	_, m := servicetest.MiniRedis(t)
	rdb := slowClient(t, m.Addr())
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), source: "nexon", redis: m, outside: newOutside(t)}
	w.script = script(w.source, rdb)
	r := w.rng
	w.trial = draw(r)
	w.usage = !chance(r, 4)
	w.fails = []int{0, 0, 10, 50, 200}[r.IntN(5)]
	w.manners = []int{0, 0, 10, 50, 200}[r.IntN(5)]
	w.skew = span(r, -5*time.Second, 5*time.Second)
	w.demand.low = []int{w.trial.low, w.trial.low, w.trial.low, 2, 0}[r.IntN(5)]
	w.demand.high = []int{0, 2, 4, 30, 60}[r.IntN(5)]
	w.demand.think = []time.Duration{2 * ms, 30 * ms, 300 * ms, time.Second}[r.IntN(4)]
	w.grants, w.refunds, w.lost = map[inFlightCall]grants{}, map[inFlightCall]int{}, true
	return w
}

// stream is a source of chance of its own.
func (w *world) stream() *rand.Rand { return rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64())) }

func (w *world) redisNow() time.Time { return time.Now().Add(w.skew) }

// quiet reports whether nothing goes wrong any more.
func (w *world) quiet() bool { return !time.Now().Before(w.calm) }

// process is one that uses the limiter.
type process struct {
	world     *world
	name      int
	limiter   *Limiter
	rng, book *rand.Rand // of its calls to Redis, and to settings and counts
	ctx       context.Context
	stop      context.CancelFunc
	wg        sync.WaitGroup
	answered  bool      // by Redis
	stopped   time.Time // it read then that it is; zero: it is not
	learns    []time.Duration
	learned   int         // the setting that it obeys
	asking    atomic.Bool // a call of it to Redis is under way
}

var errLost = errors.New("the connection was lost")

// ask runs the script as over a network.
func (p *process) ask(_ context.Context, d demand) (grant, error) {
	w, r := p.world, p.rng
	p.asking.Store(true)
	defer p.asking.Store(false)
	there, back := latency(r), latency(r)
	fate := 999
	if !w.quiet() {
		switch r.IntN(40) {
		case 0:
			there += span(r, 0, 60*ms)
		case 1:
			back += span(r, 0, 60*ms)
		case 2: // the process stands still
			if chance(r, 4) {
				back += span(r, 0, 2*time.Second)
			}
		}
		fate = r.IntN(1000)
	}
	sleep(there)
	w.mu.Lock()
	down := time.Now().Before(w.unreachable)
	w.mu.Unlock()
	switch {
	case down || fate < w.fails/3:
		sleep(back)
		return grant{}, errLost
	case fate < w.fails/2: // it arrives when nobody waits for it any more
		late := span(r, 0, 2*time.Second)
		w.wg.Go(func() {
			sleep(late)
			_, _, _ = w.run(p, d)
		})
		sleep(redisTimeout)
		return grant{}, errLost
	}
	g, at, err := w.run(p, d)
	if err != nil {
		w.wrong("the script failed: %v", err)
		return grant{}, err
	}
	sleep(back)
	if fate < w.fails {
		return grant{}, errLost
	}
	w.granted(p, g, at)
	return g, nil
}

// latency draws that of one way, more often a short one.
func latency(r *rand.Rand) time.Duration {
	const least = 50 * time.Microsecond
	return span(r, least, least<<r.IntN(8)+least)
}

// run runs the script, and notes what Redis was told.
func (w *world) run(p *process, d demand) (g grant, at time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at = time.Now()
	redisNow, text := w.redisNow(), ""
	w.outside.do(func() { // where time.Now is another
		w.redis.SetTime(redisNow)
		if g, err = w.script(context.Background(), d); err == nil {
			text, err = w.redis.Get(stateKey(w.source))
		}
	})
	if err == nil {
		w.answered(d, g, at, redisNow)
	}
	w.states = append(w.states, state{at, text, w.newest})
	for at.Sub(w.states[0].at) > 2*time.Second {
		w.states = w.states[1:]
	}
	words := strings.Fields(d.events)
	for i, word := range words {
		var a, b, sent int64
		switch word {
		case "backoff":
			_, _ = fmt.Sscan(strings.Join(words[i+1:i+4], " "), &a, &b, &sent)
			if a == 0 && sent < w.brakedAt {
				continue // refused before the last brake: it is about that one
			}
			if a == 0 {
				a = b
			}
			w.brakedAt = max(w.brakedAt, redisNow.UnixMicro())
			w.brakes = append(w.brakes, backoffRecord{told: at, until: at.Add(micros(a))})
		case "open":
			_, _ = fmt.Sscan(strings.Join(words[i+1:i+4], " "), &a, &b, &sent)
			w.applyOpen(at, redisNow.UnixMicro(), micros(a), micros(b), sent)
		case "close":
			_, _ = fmt.Sscan(words[i+1], &sent)
			w.applyClose(at, redisNow.UnixMicro(), sent)
		case "refund":
			_, _ = fmt.Sscan(words[i+1], &a)
			w.refunds[inFlightCall{p.name, a}]++
		}
	}
	if wrong := w.probed(g, at); wrong != "" && err == nil {
		w.wrongs = append(w.wrongs, fmt.Sprintf("%v  %s: %+v", time.Since(w.start), wrong, g))
	}
	return g, at, err
}

// Quota is what the process knows of the settings: each change up to a second late.
func (p *process) Quota(context.Context, string) (Override, int64, error) {
	w := p.world
	sleep(span(p.book, 0, 5*ms))
	n := p.learn()
	if n != p.learned {
		for range 300 { // what is reserved by a call under way must be given up too: wait for one
			if p.asking.Load() {
				break
			}
			sleep(ms / 5)
		}
		p.learned = n
		p.wg.Go(p.tells)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.settings[n].override
	switch {
	case !o.Stopped:
		p.stopped = time.Time{}
	case p.stopped.IsZero():
		p.stopped = time.Now()
	}
	return o, int64(n), nil
}

// learn returns the newest setting that the process can know of.
func (p *process) learn() (n int) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p.learns) < len(w.settings) {
		p.learns = append(p.learns, span(p.book, 0, 900*ms))
	}
	p.learns[0] = 0
	for i, s := range w.settings {
		if time.Since(s.at) >= p.learns[i] {
			n = i
		}
	}
	return n
}

// tells has the limiter tell Redis of what it has learned just now, as it does where
// there is a live view.
func (p *process) tells() {
	sleep(ms)
	p.limiter.mu.Lock()
	p.limiter.reportForcesCall = true
	p.limiter.mu.Unlock()
	p.limiter.wake()
}

// Used and SetUsed keep the day's count as the database does.
func (p *process) Used(context.Context, string, string) (Count, error) {
	w := p.world
	sleep(span(p.book, 0, 5*ms))
	if !w.quiet() && p.book.IntN(100) < w.fails {
		return Count{}, errLost
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count, nil
}

func (p *process) SetUsed(_ context.Context, _, _ string, c Count) error {
	w := p.world
	sleep(span(p.book, 0, 5*ms))
	fate := 100
	if !w.quiet() {
		fate = p.book.IntN(100)
	}
	if fate < w.fails/2 {
		return errLost
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.DayEnd.After(w.count.DayEnd) || (c.DayEnd.Equal(w.count.DayEnd) && c.Calls >= w.count.Calls) {
		w.count = c
	}
	if fate < w.fails {
		return errLost
	}
	return nil
}

// wait is a waiter's life: it asks for one permit after the other.
func (p *process) wait(high bool, r *rand.Rand) {
	w, lane, think := p.world, schemas.Low, 2*ms
	if high {
		lane, think = schemas.High, 2*w.demand.think
	}
	acquire := p.limiter.Acquire
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(span(r, 0, think)):
		}
		ctx, cancel := p.ctx, context.CancelFunc(func() {})
		bad := 1000 // of which nothing is dealt with badly
		if !w.quiet() {
			bad = r.IntN(1000)
			if r.IntN(1000) < w.manners {
				ctx, cancel = context.WithTimeout(p.ctx, span(r, 0, 300*ms))
			}
		}
		permit, err := acquire(ctx, lane, Call{})
		cancel()
		acquire = p.limiter.Acquire
		if err != nil {
			continue
		}
		switch {
		case bad < w.manners/3: // it turns out that no call is needed
			sleep(span(r, 0, 60*ms))
			permit.Release()
			if permit.Spend() {
				w.wrong("a released permit was spent")
			}
			continue
		case bad < w.manners/3*2: // connecting takes about as long as a permit lives
			sleep(span(r, 0, 60*ms))
		case bad < w.manners: // the process was stopped
			sleep(span(r, 0, 3*time.Second))
		}
		if permit.Spend() {
			w.spent(p, permit, high, span(r, 0, w.trial.config.Jitter)*time.Duration(r.IntN(3))/2)
		} else if chance(r, 2) {
			acquire = p.limiter.Reacquire
		}
		if permit.Spend() {
			w.wrong("a permit was spent twice")
		}
		permit.Release()
	}
}
