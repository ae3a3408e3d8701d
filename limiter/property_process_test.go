package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// outside runs functions outside of the synctest bubble, where sockets work. The simulated time
// of the bubble stands still meanwhile.
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

// slowClient returns a client without timeouts in real time, also without the deadlines of contexts. So a
// busy machine fails no run.
func slowClient(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: time.Hour, ReadTimeout: -1})
	rdb.AddHook(servicetest.RedisHook(func(ctx context.Context, _ []redis.Cmder, send func(context.Context) error) error {
		return send(context.WithoutCancel(ctx))
	}))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// world is one run: a Redis, the processes that share it, and their history.
type world struct {
	seed    uint64
	rng     *rand.Rand // random numbers for the driver of the run; processes and waiters have their own
	trial   trial
	source  string
	redis   *miniredis.Miniredis
	script  acquireFunc
	outside *outside
	usage   bool // true if the day's count is stored durably
	fails   int  // how many of 1,000 calls to Redis fail, and how many of 100 calls to Usage
	// of 1,000 permits, the number that callers release, spend too late, or spend after their process
	// was suspended
	misuses int
	demand  struct {
		high, low int           // number of waiters of each lane in each process
		think     time.Duration // average time between two permits of a HIGH caller
	}
	wg sync.WaitGroup

	// Only the driver of the run uses the next fields.
	start, calm, over, midnight, noBegin time.Time
	processes                            []*process
	begun                                int
	override                             Override
	backedOff                            bool

	mu          sync.Mutex
	skew        time.Duration // offset of Redis' clock from the simulated time
	unreachable time.Time     // Redis is unreachable until this time
	states      []state
	settings    []setting
	count       Count
	record
}

type state struct {
	at     time.Time
	text   string
	newest int // index of the newest setting that Redis had received at the time `at`
}

// setting is an override and the time when it was set.
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
	w.misuses = []int{0, 0, 10, 50, 200}[r.IntN(5)]
	w.skew = span(r, -5*time.Second, 5*time.Second)
	w.demand.low = []int{w.trial.low, w.trial.low, w.trial.low, 2, 0}[r.IntN(5)]
	w.demand.high = []int{0, 2, 4, 30, 60}[r.IntN(5)]
	w.demand.think = []time.Duration{2 * ms, 30 * ms, 300 * ms, time.Second}[r.IntN(4)]
	w.grants, w.refunds, w.lost = map[inFlightCall]grants{}, map[inFlightCall]int{}, true
	return w
}

// stream returns an independent random source.
func (w *world) stream() *rand.Rand { return rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64())) }

func (w *world) redisNow() time.Time { return time.Now().Add(w.skew) }

// quiet reports whether the part of the run with faults is over.
func (w *world) quiet() bool { return !time.Now().Before(w.calm) }

// process is a simulated process with a limiter.
type process struct {
	world     *world
	name      int
	limiter   *Limiter
	rng, book *rand.Rand // random numbers: rng for calls to Redis, book for calls to Settings and Usage
	ctx       context.Context
	stop      context.CancelFunc
	wg        sync.WaitGroup
	answered  bool      // the process has received a reply from Redis
	stopped   time.Time // when the process read the emergency stop; zero means not stopped
	learns    []time.Duration
	learned   int         // index of the newest setting that the process has read
	calling   atomic.Bool // a call of the process to Redis is in flight
}

var errLost = errors.New("the connection was lost")

// callRedis runs the script for the process, with random network latency and faults.
func (p *process) callRedis(_ context.Context, d demand) (grant, error) {
	w, r := p.world, p.rng
	p.calling.Store(true)
	defer p.calling.Store(false)
	there, back := latency(r), latency(r)
	roll := 999
	if !w.quiet() {
		switch r.IntN(40) {
		case 0:
			there += span(r, 0, 60*ms)
		case 1:
			back += span(r, 0, 60*ms)
		case 2: // the process is suspended
			if chance(r, 4) {
				back += span(r, 0, 2*time.Second)
			}
		}
		roll = r.IntN(1000)
	}
	sleep(there)
	w.mu.Lock()
	down := time.Now().Before(w.unreachable)
	w.mu.Unlock()
	switch {
	case down || roll < w.fails/3:
		sleep(back)
		return grant{}, errLost
	case roll < w.fails/2: // the reply arrives after the timeout
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
	if roll < w.fails {
		return grant{}, errLost
	}
	w.granted(p, g, at)
	return g, nil
}

// latency returns a random one-way latency; short latencies are more frequent than long ones.
func latency(r *rand.Rand) time.Duration {
	const least = 50 * time.Microsecond
	return span(r, least, least<<r.IntN(8)+least)
}

// run runs the script and records the events that Redis received.
func (w *world) run(p *process, d demand) (g grant, at time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at = time.Now()
	redisNow, text := w.redisNow(), ""
	w.outside.do(func() { // sockets do not work inside of the synctest bubble
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
	for _, e := range d.events {
		n := e.numbers
		switch e.kind {
		case eventBackoff:
			pause, base, sent := n[0], n[1], n[2]
			w.backedOffBy.refused(at, redisNow.UnixMicro(), micros(pause), micros(base), sent)
			if pause == 0 && sent < w.backedOffAt {
				continue // this refused call was sent before the last backoff began, so Redis begins no second backoff
			}
			if pause == 0 {
				pause = base
			}
			w.backedOffAt = max(w.backedOffAt, redisNow.UnixMicro())
			w.backoffs = append(w.backoffs, backoffRecord{reported: at, until: at.Add(micros(pause))})
		case eventOpen:
			w.applyOpen(at, redisNow.UnixMicro(), micros(n[0]), micros(n[1]), n[2])
		case eventClose:
			w.applyClose(at, redisNow.UnixMicro(), n[0])
		case eventRefund:
			w.refunds[inFlightCall{p.name, n[0]}]++
			w.backedOffBy.refunded(n[0])
			w.stop.refunded(at, n[0])
		case eventResume:
			w.backedOffBy.resumed(at, n[0])
		case eventDayCount, eventStep, eventUnused:
		}
	}
	wrong := w.probed(g, at, redisNow)
	if wrong == "" && !w.stop.blind {
		wrong = w.backedOffBy.probed(g, at, redisNow)
	}
	if wrong != "" && err == nil {
		w.wrongs = append(w.wrongs, fmt.Sprintf("%v  %s: %+v", time.Since(w.start), wrong, g))
	}
	return g, at, err
}

// Quota implements Settings. It returns the newest settings that have reached this process, and takes
// up to a second.
func (p *process) Quota(context.Context, string) (Override, int64, error) {
	w := p.world
	sleep(span(p.book, 0, 5*ms))
	n := p.learn()
	if n != p.learned {
		for range 300 { // apply the new setting while a call to Redis is in flight: the limiter must also give up the slots that this call returns
			if p.calling.Load() {
				break
			}
			sleep(ms / 5)
		}
		p.learned = n
		p.wg.Go(p.sendSettings)
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

// learn returns the index of the newest setting that this process can read. A setting reaches a process
// after a random delay.
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

// sendSettings makes the limiter call Redis with its new settings. In production the next report makes this
// call.
func (p *process) sendSettings() {
	sleep(ms)
	p.limiter.mu.Lock()
	p.limiter.alloc.forceCall = true
	p.limiter.mu.Unlock()
	p.limiter.wake()
}

// Used and SetUsed store the day's count like the database.
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
	roll := 100
	if !w.quiet() {
		roll = p.book.IntN(100)
	}
	if roll < w.fails/2 {
		return errLost
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.DayEnd.After(w.count.DayEnd) || (c.DayEnd.Equal(w.count.DayEnd) && c.Calls >= w.count.Calls) {
		w.count = c
	}
	if roll < w.fails {
		return errLost
	}
	return nil
}

// wait acquires permits one after the other, and spends, releases or misuses them at random.
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
		// a random number below 1000 that chooses a misuse of the permit; 1000, after the end of the
		// faults: no misuse
		bad := 1000
		if !w.quiet() {
			bad = r.IntN(1000)
			if r.IntN(1000) < w.misuses {
				ctx, cancel = context.WithTimeout(p.ctx, span(r, 0, 300*ms))
			}
		}
		permit, err := acquire(ctx, lane, Call{})
		cancel()
		if w.quiet() { // the faults ended while the caller waited
			bad = 1000
		}
		acquire = p.limiter.Acquire
		if err != nil {
			continue
		}
		switch {
		case bad < w.misuses/3: // the caller no longer needs its call, and releases the permit
			sleep(span(r, 0, 60*ms))
			permit.Release()
			if permit.Spend() {
				w.wrong("a released permit was spent")
			}
			continue
		// the caller spends the permit too late: connecting takes up to 60 ms, and a permit expires
		// after 40 ms
		case bad < w.misuses/3*2:
			sleep(span(r, 0, 60*ms))
		case bad < w.misuses: // the process is suspended for up to 3 s, and spends the permit afterwards
			sleep(span(r, 0, 3*time.Second))
		}
		if permit.Spend() {
			w.spent(p, permit, high, span(r, 0, w.trial.config.Jitter)*time.Duration(r.IntN(3))/2)
			if !chance(r, 3) { // no end is reported for a third of the calls
				takes := span(r, 0, 300*ms)
				p.wg.Go(func() {
					sleep(takes)
					permit.ReportEnd(200, nil, refusedIf(200))
				})
			}
		} else if chance(r, 2) {
			acquire = p.limiter.Reacquire
		}
		if permit.Spend() {
			w.wrong("a permit was spent twice")
		}
		permit.Release()
	}
}
