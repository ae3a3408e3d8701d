package limiter

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seedCount = flag.Uint64("seeds", 0, "how many seeds each random test runs; 0: as many as fit into make test. A change of a script deserves hundreds")
	oneSeed   = flag.Uint64("seed", 0, "run this seed alone, and print its story")
)

// eachSeed runs a subtest for each of the seeds 1 to `short`, and for the seeds that once found a defect
// (`found`), or for the seeds that the test flags select.
func eachSeed(t *testing.T, short uint64, run func(t *testing.T, seed uint64), found ...uint64) {
	last := short
	if *seedCount > 0 {
		last = *seedCount
	}
	seeds := slices.DeleteFunc(found, func(seed uint64) bool { return seed <= last })
	for seed := uint64(1); seed <= last; seed++ {
		seeds = append(seeds, seed)
	}
	if *oneSeed > 0 {
		seeds = []uint64{*oneSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			run(t, seed)
			if t.Failed() {
				t.Logf("to repeat it: go test ./limiter -run '%s' -seed %d", strings.Split(t.Name(), "/")[0], seed)
			}
		})
	}
}

// A seed determines a run: the quota, the demand, and the faults with their times. Limiter and script
// are real, and the time is that of a synctest bubble. The order of goroutines that wake up in the same
// nanosecond is not determined. This is rare, because random times have a resolution of a nanosecond.
// So a seed almost always gives the same run.
func TestProperty_LimitHoldsUnderRandomFaults(t *testing.T) {
	eachSeed(t, 8, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		synctest.Test(t, w.play)
		for _, wrong := range w.judge() {
			t.Error(wrong)
		}
		if t.Failed() || *oneSeed > 0 {
			t.Log(w.storyText())
		}
	}, 283) // Redis' clock is set back twice and forward once within a second
}

// trial is a quota and the parameters of its run.
type trial struct {
	name   string
	config Config
	// before is the time from the start of the run until midnight in Seoul. If it is negative,
	// the run starts after midnight.
	before time.Duration
	// A run has faults for the duration "busy", and then no faults for the duration "calm". In the
	// last part of the calm time, with the length "judged", saturating callers must use up the
	// budget.
	busy, calm, judged time.Duration
	low                int  // number of LOW waiters in each process, enough to saturate LOW
	loose              bool // true if LOW's rate does not follow from the quota alone, so the judge does not check it
}

func (tr trial) with(p ...Policy) trial {
	tr.config.Policies = append(slices.Clone(tr.config.Policies), p...)
	return tr
}

// draw returns a random trial.
func draw(r *rand.Rand) trial {
	seoul := func(limit int, reserve Reserve) Policy {
		return Policy{Name: "day", Limit: limit, Window: Day, TimeZone: "Asia/Seoul", HighReserve: reserve}
	}
	contract := trial{
		name: "reference", config: second(500, 450, 100, 0), before: 10 * time.Hour,
		busy: span(r, 4*time.Second, 8*time.Second), calm: 6 * time.Second, judged: 3 * time.Second, low: 70,
	}
	few := func(limit, high int) trial {
		tr := contract
		tr.name, tr.config, tr.low = fmt.Sprintf("log of %d/s", limit), second(limit, 0, high, (limit-high)/5), 10
		tr.busy, tr.calm, tr.judged = span(r, 6*time.Second, 20*time.Second), 15*time.Second, 10*time.Second
		return tr
	}
	// late starts the run shortly before midnight, so that midnight, or the time 10 s before or after
	// it, is in the run
	late := func(tr trial, name string) trial {
		tr.name, tr.before, tr.loose = name, span(r, 0, tr.busy)+time.Duration(r.IntN(3)-1)*dayMargin, true
		return tr
	}
	// past lets the run continue until more than 10 s after midnight, so that the count of the new day
	// is checked
	past := func(tr trial) trial {
		tr.calm = max(tr.calm, tr.before+dayMargin+6*time.Second-tr.busy)
		return tr
	}
	switch r.IntN(11) {
	case 0, 1, 2:
		return contract
	case 3:
		tr := contract.with(seoul(20_000_000, Reserve{Calls: 500_000}))
		tr.name = "reference and day"
		return tr
	case 4:
		return late(contract.with(seoul(20_000_000, Reserve{})), "reference over midnight")
	case 5:
		return past(late(contract.with(seoul(500+r.IntN(3000), Reserve{Calls: 400})), "reference and a small day"))
	case 6:
		return few(5, 1)
	case 7:
		return few(20, r.IntN(6))
	case 8:
		return past(late(few(20, 4).with(seoul(60+r.IntN(150), Reserve{Calls: 50})), "log of 20/s and a small day"))
	case 9:
		tr := few(5, 1).with(Policy{Name: "minute", Limit: 40, Window: Window(time.Minute), HighReserve: Reserve{Calls: 10}})
		tr.name, tr.busy, tr.calm, tr.judged = "5/s and 40/min", 130*time.Second, 150*time.Second, time.Minute
		return tr
	}
	tr := contract
	tr.name, tr.config = "all of 500/s", second(500, 0, 50+r.IntN(200), r.IntN(80))
	return tr
}

// span returns a random duration from `least` to `most`, with nanosecond resolution.
func span(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// chance returns true with the probability 1/n.
func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// incident is one fault or change in a run.
type incident struct {
	at   time.Duration // when the fault or change happens, since the start of the run
	name string
	act  func()
}

// plan returns random incidents.
func (w *world) plan() []incident {
	r, end := w.rng, w.trial.busy
	all := []incident{}
	at := func(at time.Duration, name string, act func()) { all = append(all, incident{at, name, act}) }
	kinds := []func(time.Duration){
		func(t time.Duration) { at(t, "Redis loses its state", w.lose) },
		func(t time.Duration) {
			age := span(r, 0, 2*time.Second)
			at(t, fmt.Sprintf("a failover loses the last %v", age), func() { w.failover(age) })
		},
		func(t time.Duration) {
			by := w.step(3*ms, 9*time.Second)
			at(t, fmt.Sprintf("Redis' clock is set back by %v", by), func() { w.setClock(-by) })
		},
		func(t time.Duration) {
			by := w.step(400*ms, 9*time.Second)
			at(t, fmt.Sprintf("Redis' clock is set forward by %v", by), func() { w.setClock(by) })
		},
		func(t time.Duration) {
			by := w.step(400*ms, 9*time.Second)
			at(t, fmt.Sprintf("Redis' clock is set back by %v", by), func() { w.setClock(-by) })
			t += span(r, 0, 5*time.Second)
			at(t, fmt.Sprintf("Redis' clock is set forward by %v again", by), func() { w.setClock(by) })
		},
		func(t time.Duration) {
			for range 1 + r.IntN(2) {
				d := span(r, 200*ms, 3*time.Second).Truncate(time.Microsecond) * time.Duration(r.IntN(2))
				at(t, fmt.Sprintf("backoff for %v", d), func() { w.backOff(d) })
				t += span(r, 0, 2*time.Second)
			}
		},
		func(t time.Duration) {
			first := span(r, time.Second, 2*time.Second).Truncate(time.Microsecond)
			most := span(r, 0, 4*time.Second).Truncate(time.Microsecond)
			for range 1 + r.IntN(3) {
				at(t, fmt.Sprintf("probing, first after %v, then up to %v", first, most), func() { w.openBreaker(first, most) })
				t += span(r, 0, 3*time.Second)
				ago := span(r, 0, 4*time.Second)
				at(t, fmt.Sprintf("the answers to what was sent %v ago are healthy", ago), func() { w.closeBreaker(ago) })
			}
		},
		func(t time.Duration) { at(t, "settings change", w.change) },
		func(t time.Duration) {
			at(t, "stop", func() { w.set(w.override, true) })
			at(min(t+span(r, time.Second, 4*time.Second), end), "resume", func() { w.set(w.override, false) })
		},
		func(t time.Duration) { at(t, "a process ends", w.end) },
		func(t time.Duration) { at(t, "a process begins", w.begin) },
		func(t time.Duration) {
			d := span(r, 50*ms, 1500*ms)
			at(t, fmt.Sprintf("Redis can't be reached for %v", d), func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.unreachable = time.Now().Add(d)
			})
		},
	}
	// Each run has at most four kinds of events, so that events of these kinds often overlap.
	r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	kinds = kinds[:1+r.IntN(4)]
	for range r.IntN(9) {
		kinds[r.IntN(len(kinds))](span(r, time.Second, end))
	}
	// Some kinds add events at later times, so the events must be sorted. Events after the end of the
	// run are dropped.
	slices.SortStableFunc(all, func(a, b incident) int { return cmp.Compare(a.at, b.at) })
	return slices.DeleteFunc(all, func(e incident) bool { return e.at > end })
}

// step returns a random clock step, mostly a small one.
func (w *world) step(least, most time.Duration) time.Duration {
	return span(w.rng, least, span(w.rng, least, most))
}

// play performs the run in its bubble.
func (w *world) play(t *testing.T) {
	seoul, err := time.LoadLocation("Asia/Seoul")
	if err != nil {
		t.Fatal(err)
	}
	// A synctest bubble begins in 2000, when times in µs had 15 digits. The script's logs require 16
	// digits.
	w.midnight = time.Date(2027, 1, 2, 0, 0, 0, 0, seoul)
	sleep(time.Until(w.midnight.Add(-w.trial.before)))
	w.start = time.Now()
	w.settings = []setting{{at: w.start.Add(-time.Hour), config: w.trial.config}}
	w.count = Count{DayEnd: w.midnight, At: w.redisNow()} // a saved count of the day exists, as if the source had run before
	w.calm = w.start.Add(w.trial.busy)
	for range 1 + w.rng.IntN(3) {
		w.begin()
		sleep(span(w.rng, 0, 100*ms))
	}
	for _, e := range w.plan() {
		sleep(time.Until(w.start.Add(e.at)))
		w.logStory("%s", e.name)
		e.act()
	}
	sleep(time.Until(w.calm.Add(w.trial.calm)))
	w.over = time.Now()
	for len(w.processes) > 0 {
		w.end()
	}
	w.wg.Wait()
}

// lose deletes the limiter's state from Redis.
func (w *world) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outside.do(func() { w.redis.Del(stateKey(w.source)) })
	w.states = nil
	w.forget(w.start, 0)
}

// failover replaces the state in Redis by an older one, with another replication ID.
func (w *world) failover(age time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	then, text, newest := w.start, "", 0
	for _, s := range w.states {
		if text == "" || time.Since(s.at) >= age {
			then, text, newest = s.at, s.text, s.newest
		}
	}
	if text == "" {
		return
	}
	id := fmt.Sprintf("%020x%020x", w.rng.Uint64(), w.rng.Uint64())
	text = text[:2] + id + text[42:84] + id[:14] + text[98:]
	w.outside.do(func() { _ = w.redis.Set(stateKey(w.source), text) })
	w.forget(then, newest)
}

// setClock sets Redis' clock. A process without an earlier reply of Redis cannot detect that the
// clock is set forward. So the clock is set forward only if every process has had a reply, and no
// process starts soon after.
func (w *world) setClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	skew := w.skew + by
	if w.trial.before < time.Hour && (skew < -dayMargin+time.Second || skew > dayMargin-time.Second) {
		w.logStory("not so: the clocks would be too far apart")
		return
	}
	if by > 0 {
		for _, p := range w.processes {
			if !p.answered {
				w.logStory("not so: process %d has had no answer yet", p.name)
				return
			}
		}
		w.noBegin = time.Now().Add(3 * time.Second)
		w.shortenBackoffs(by)
		w.silence = w.silence.Add(-by)
	}
	w.skew, w.stop.blind = skew, true
}

// backOff lets one random process report that the upstream refused a call.
func (w *world) backOff(d time.Duration) {
	p := w.processes[w.rng.IntN(len(w.processes))]
	w.backedOff = true
	p.limiter.BackOff(d, time.Now().Add(-span(w.rng, 0, 300*ms)))
}

// change changes the limit, target and reserve of a policy.
func (w *world) change() {
	for range 20 {
		o := Override{Policies: map[string]PolicyOverride{}}
		p := w.trial.config.Policies[w.rng.IntN(len(w.trial.config.Policies))]
		factor := []float64{0.1, 0.5, 0.7, 1, 1, 1.5, 2}[w.rng.IntN(7)]
		limit := max(1, int(float64(p.Limit)*factor))
		var c PolicyOverride
		c.Limit = &limit
		if p.Target > 0 {
			target := limit * (30 + w.rng.IntN(61)) / 100
			c.Target = &target
		}
		if high := p.HighReserve.Calls; high > 0 {
			c.HighReserve = &Reserve{Calls: int(float64(high) * factor * w.rng.Float64() * 2)}
		}
		o.Policies[p.Name] = c
		config, err := w.trial.config.With(o)
		if err != nil {
			continue
		}
		if _, err := NewQuota(config); err == nil {
			w.logStory("limit %d, target %d, reserve %v of %s", limit, deref(c.Target), c.HighReserve, p.Name)
			w.set(o, w.settings[len(w.settings)-1].override.Stopped)
			return
		}
	}
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// set stores an override. Processes read it within a second.
func (w *world) set(o Override, stopped bool) {
	config, err := w.trial.config.With(o)
	if err != nil {
		w.wrong("%v", err)
		return
	}
	o.Stopped = stopped
	w.override = o
	w.mu.Lock()
	w.settings = append(w.settings, setting{at: time.Now(), config: config, override: o})
	w.mu.Unlock()
}

// begin starts a process.
func (w *world) begin() {
	if len(w.processes) >= 4 || time.Now().Before(w.noBegin) {
		w.logStory("not so")
		return
	}
	w.begun++
	p := &process{world: w, name: w.begun, rng: w.stream(), book: w.stream()}
	deps := withoutLogs(Deps{Settings: p})
	if w.usage {
		deps.Usage = p
	}
	l, err := newLimiter(w.source, w.trial.config, p.callRedis, deps)
	if err != nil {
		w.wrong("%v", err)
		return
	}
	p.limiter = l
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.wg.Go(func() {
		if err := l.Run(p.ctx); err != nil {
			w.wrong("%v", err)
		}
	})
	for range w.demand.high {
		r := w.stream()
		p.wg.Go(func() { p.wait(true, r) })
	}
	for range w.demand.low {
		r := w.stream()
		p.wg.Go(func() { p.wait(false, r) })
	}
	w.processes = append(w.processes, p)
}

// end ends one process. The last process is not ended before the end of the run.
func (w *world) end() {
	if len(w.processes) == 1 && w.over.IsZero() {
		return
	}
	i := w.rng.IntN(len(w.processes))
	w.processes[i].stop()
	w.wg.Go(w.processes[i].wg.Wait)
	w.processes = slices.Delete(w.processes, i, i+1)
}
