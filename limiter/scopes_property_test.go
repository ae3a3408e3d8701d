package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/announced"
)

// While faults happen, the calls must never exceed a limit of the upstream. After the faults, every
// caller must get a permit, and no call that has ended may count as in flight.
func TestProperty_ScopedPoliciesHoldUnderFaults(t *testing.T) {
	eachSeed(t, 2, func(t *testing.T, seed uint64) {
		j := drawScopes(seed)
		inCallers(t, seed, 2+j.chance.IntN(2), j.config, j.answer, j.play)
	})
}

// scopesJudge is an upstream with limits that records each violation of them.
type scopesJudge struct {
	config Config
	seed   uint64
	chance *rand.Rand
	story  []string
	wrong  map[string]int

	seen      map[string][]time.Time // arrival times of calls or units, by policy and scope value
	levels    map[string]float64
	fixed     map[string]*fixedWindow
	flying    map[string]int
	stopped   time.Time // because of an emergency stop, no call may arrive after this time; zero means no stop
	losses    int       // how often Redis has lost its state
	unhealthy string    // the credential that the upstream refuses
	maxCost   int       // highest cost that freshet estimates for a document
}

const refusedReported = "reported: refused"

// reportSlack is the longest duration of a call. The end of a window that a response reports can be
// later than the true end by at most this time.
const reportSlack = 5500 * ms

var scopesDrawn = []string{"", "{credential}", "{endpoint}", "{method}", "{credential}/{endpoint}", "{key}"}

func drawScopes(seed uint64) *scopesJudge {
	r := rand.New(rand.NewPCG(seed, 7))
	j := &scopesJudge{
		seed: seed, chance: r, wrong: map[string]int{}, seen: map[string][]time.Time{}, levels: map[string]float64{},
		fixed: map[string]*fixedWindow{}, flying: map[string]int{},
	}
	all := []Policy{
		{Name: "log", Limit: 5 + r.IntN(30), Window: Window(span(r, time.Second, 4*time.Second).Truncate(ms)), Unit: "units"},
		{Name: "window", Limit: 100 + r.IntN(100), Window: Window(span(r, 2*time.Second, 5*time.Second).Truncate(ms)), Unit: "units"},
		{Name: "bucket", Limit: 40 + r.IntN(60), Restore: Rate(5 + r.IntN(20)), Unit: "units"},
		{Name: "gap", MinInterval: &MinInterval{Min: span(r, 50*ms, 600*ms).Truncate(ms), Max: time.Second}},
		// The window is longer than twice the longest response time (reportSlack). If it were
		// shorter, the limiter could not know to which window a late response belongs.
		{Name: "reported", Limit: 20 + r.IntN(60), Window: Window(span(r, 2*reportSlack+time.Second, 20*time.Second).Truncate(ms)), Reported: true, Pace: chance(r, 3)},
		{Name: "slots", Limit: 2 + r.IntN(5), Window: InFlight},
	}
	r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	all = all[:2+r.IntN(3)]
	for i := range all {
		p := &all[i]
		p.Scope = scopesDrawn[r.IntN(len(scopesDrawn))]
		if p.MinInterval == nil && chance(r, 2) {
			p.HighReserve = Reserve{Calls: 1}
		}
		if !p.scoped() {
			p.Scope = "all"
		}
	}
	j.config = Config{Jitter: 10 * ms, Lease: 6 * time.Second, Policies: all, Breakers: map[string]string{"credential": "{credential}"}}
	j.maxCost = 1000
	for _, p := range all {
		if p.Unit != "" {
			j.maxCost = min(j.maxCost, p.Limit/2)
		}
	}
	if chance(r, 2) {
		j.maxCost = 4 // in half of the runs, a document costs at most 4 units
	}
	j.config.Costs = map[string]CostRange{"units": {1, j.maxCost}}
	if chance(r, 2) {
		j.config.CostReported = []string{"log", "window", "bucket"}
	}
	return j
}

// used returns the actual units of a call, and whether its response reports them.
func (j *scopesJudge) used(estimate int, p Policy) (units int, announces bool) {
	if p.Unit == "" || !slices.Contains(j.config.CostReported, p.Name) {
		return estimate, false
	}
	return 1 + j.chance.IntN(estimate), true
}

func costs(policy string, units int) announced.Notice {
	return announced.Notice{Policy: policy, Limit: announced.Unknown, Remaining: announced.Unknown, Cost: int64(units), Reset: -1}
}

func (j *scopesJudge) note(format string, args ...any) { j.wrong[fmt.Sprintf(format, args...)]++ }

// answer checks a call that arrives, and returns the upstream's response.
func (j *scopesJudge) answer(c atUpstream) answered {
	a := answered{status: 200, takes: 20*ms + time.Duration(c.at.UnixNano()%int64(300*ms))}
	if chance(j.chance, 30) {
		a.takes = span(j.chance, time.Second, 5*time.Second)
	}
	if !j.stopped.IsZero() && c.at.After(j.stopped) {
		j.note("a call during a stop")
	}
	var back []func()
	for _, p := range j.config.Policies {
		scope, _ := parseScope(p.Scope)
		id := p.Name + ":" + scope.fill(func(name string) string { return c.call.value(name, c.credential) })
		estimate := p.cost(c.call)
		units, announces := j.used(estimate, p)
		if announces {
			a.notices = append(a.notices, costs(p.Name, units))
		}
		switch p.Name {
		case "log", "window":
			for range units {
				j.seen[id] = append(j.seen[id], c.at)
			}
			for c.at.Sub(j.seen[id][0]) >= time.Duration(p.Window) {
				j.seen[id] = j.seen[id][1:]
			}
			if n := len(j.seen[id]); n > p.Limit {
				j.note("%s: %d of %d in the window", p.Name, n, p.Limit)
			}
		case "bucket":
			level, known := j.levels[id]
			if !known {
				level = float64(p.Limit)
			} else {
				level = min(float64(p.Limit), level+float64(p.Restore)*c.at.Sub(j.seen[id][0]).Seconds())
			}
			j.levels[id], j.seen[id] = level-float64(estimate), []time.Time{c.at} // charge the estimated cost; the response corrects it
			if level < float64(estimate) {
				j.note("bucket: %d units of %.1f", estimate, level)
			}
			back = append(back, func() { j.levels[id] += float64(estimate - units) })
		case "gap":
			if before := j.seen[id]; len(before) > 0 && c.at.Sub(before[0]) < p.MinInterval.Min {
				j.note("gap: %v", c.at.Sub(before[0]))
			}
			j.seen[id] = []time.Time{c.at}
		case "reported":
			w := j.fixed[id]
			if w == nil {
				w = &fixedWindow{limit: p.Limit, length: time.Duration(p.Window)}
				j.fixed[id] = w
			}
			if !w.take(c.at, 1) {
				j.note(refusedReported)
				j.story = append(j.story, fmt.Sprintf("refused %v %s left %d till %v", c.at.UnixMicro(), id, w.limit-w.used, w.ends.UnixMicro()))
			}
			a.notices = append(a.notices, reportOf("reported", int64(w.limit-w.used), w.ends.Sub(c.at), reportSlack))
		case "slots":
			if j.flying[id]++; j.flying[id] > p.Limit {
				j.note("slots: %d of %d", j.flying[id], p.Limit)
			}
			back = append(back, func() { j.flying[id]-- })
		}
	}
	if c.credential == j.unhealthy && j.unhealthy != "" {
		a.status, a.notices = 401, nil
	}
	a.then = func() {
		for _, give := range back {
			give()
		}
	}
	return a
}

// play runs the callers while random events happen. After that it checks that all callers were
// served, that no caller waits, and that Redis counts no ended call as in flight.
func (j *scopesJudge) play(f *callers) {
	r := j.chance
	started, served := atomic.Int64{}, atomic.Int64{}
	busy, calls := context.WithCancel(f.Context())
	defer calls()
	caller := func(m *member, lane schemas.Lane, call Call) {
		for busy.Err() == nil && m.ctx.Err() == nil {
			started.Add(1)
			j.call(f, m, lane, call)
			served.Add(1)
			sleep(f.span(0, 400*ms))
		}
	}
	begin := func(m *member) {
		for range 4 + r.IntN(8) {
			call := Call{
				Endpoint: []string{"f/a", "f/b"}[r.IntN(2)], Method: []string{"GET", "POST"}[r.IntN(2)], Key: []string{"k", "l"}[r.IntN(2)],
				Credentials: names(2)[:1+r.IntN(2)], Costs: map[string]int{"units": 1 + r.IntN(j.maxCost)},
			}
			lane := []schemas.Lane{schemas.High, schemas.Low, schemas.Low}[r.IntN(3)]
			m.wg.Go(func() { caller(m, lane, call) })
		}
	}
	f.mu.Lock()
	members := slices.Clone(f.members)
	for _, m := range members {
		begin(m)
	}
	f.mu.Unlock()
	start := time.Now()
	for time.Since(start) < 30*time.Second {
		f.passed(f.span(500*ms, 4*time.Second))
		j.happens(f, start, begin)
	}
	f.mu.Lock()
	f.fails = func() (before, after bool) { return false, false }
	j.unhealthy = ""
	f.mu.Unlock()
	for _, c := range names(2) {
		f.members[0].limiter.CloseCredentialBreaker(c)
	}
	f.passed(20 * time.Second)
	calls()
	f.passed(90 * time.Second)
	if a, b := started.Load(), served.Load(); a != b {
		f.Errorf("%d of %d callers wait forever", a-b, a)
	}
	j.leftOver(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	for wrong, n := range j.wrong {
		if wrong == refusedReported && n <= 4*j.losses {
			continue // after a loss of state the remaining units are unknown, so up to 4 refusals are allowed for each loss
		}
		f.Errorf("%d times: %s", n, wrong)
	}
	if len(f.calls) < 20 {
		f.Errorf("only %d calls", len(f.calls))
	}
	if f.Failed() {
		f.Logf("%+v\n%s", j.config.Policies, strings.Join(j.story, "\n"))
	}
}

// call makes one upstream call. At random the caller gives up instead, before or after it has got
// its permit.
func (j *scopesJudge) call(f *callers, m *member, lane schemas.Lane, call Call) {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	f.mu.Lock()
	gives, drops, late, lost := chance(j.chance, 8), chance(j.chance, 15), chance(j.chance, 15), chance(j.chance, 20)
	f.mu.Unlock()
	if gives {
		timer := time.AfterFunc(f.span(0, time.Second), cancel)
		defer timer.Stop()
	}
	p, err := m.limiter.Acquire(ctx, lane, call)
	if err != nil {
		return
	}
	if late {
		sleep(f.span(0, 80*ms))
	}
	if drops {
		p.Release()
		return
	}
	if !p.Spend() {
		return
	}
	sleep(f.span(0, 5*ms))
	f.mu.Lock()
	at := atUpstream{call, p.Credential(), time.Now()}
	a := f.answers(at)
	f.calls = append(f.calls, sentCall{at, lane, false})
	f.mu.Unlock()
	sleep(a.takes)
	f.made(a)
	if m.ctx.Err() != nil {
		return // the process has crashed, so it does not report the end of the call
	}
	sleep(f.span(0, 40*ms))
	switch {
	case lost:
		p.ReportEnd(0, nil, refusedIf(0))
	case a.status == 200:
		p.ReportEnd(200, a.notices, refusedIf(200))
		p.ReportSuccess()
	default:
		p.ReportEnd(a.status, a.notices, refusedIf(a.status))
		p.OpenScopeBreaker("credential", time.Second, 5*time.Second)
	}
}

// happens performs one random event.
func (j *scopesJudge) happens(f *callers, start time.Time, begin func(m *member)) {
	f.mu.Lock()
	r := j.chance
	what, m, other := r.IntN(11), f.members[r.IntN(len(f.members))], r.IntN(2) == 0
	long, i, target := span(r, 100*ms, 2*time.Second), r.IntN(len(j.config.Policies)), r.Float64()
	j.story = append(j.story, fmt.Sprintf("%v: %d %v", time.Since(start), what, long))
	f.mu.Unlock()
	revision := time.Since(start).Microseconds()
	switch what {
	case 0:
		f.flushed()
		j.losses++
	case 1, 2:
		until := time.Now().Add(long)
		f.mu.Lock()
		f.fails = func() (before, after bool) {
			refuses := time.Now().Before(until) && chance(r, 2)
			return refuses && other, refuses && !other
		}
		f.mu.Unlock()
	case 3:
		f.mu.Lock()
		j.losses++
		f.ahead += map[bool]time.Duration{true: -8 * ms, false: 2 * time.Second}[other]
		f.mu.Unlock()
	case 4, 5: // change the quota, but not above the upstream's limits
		config := j.config
		config.Policies = slices.Clone(config.Policies)
		if p := &config.Policies[i]; p.MinInterval == nil {
			p.Target = max(p.Limit/2+1, int(target*float64(p.Limit)))
		}
		if _, err := NewQuota(config); err == nil {
			f.put(config, revision, false)
		}
	case 6:
		f.put(j.config, revision, true)
		f.mu.Lock()
		j.stopped = time.Now().Add(permitLife + 10*ms) // permits that were granted before the stop can still be used until this time
		f.mu.Unlock()
		f.passed(long)
		f.mu.Lock()
		j.stopped = time.Time{}
		f.mu.Unlock()
		f.put(j.config, revision+1, false)
	case 7:
		if other {
			m.limiter.BackOff(long, time.Now())
		} else {
			m.limiter.OpenBreaker(time.Second, time.Second, time.Now())
			f.passed(long)
			for _, m := range f.members {
				m.limiter.CloseBreaker(time.Now().Add(time.Second))
			}
		}
	case 8:
		f.mu.Lock()
		j.unhealthy = map[bool]string{true: "c0", false: ""}[other]
		f.mu.Unlock()
	case 9, 10:
		m.stop() // the process's calls in flight continue, but their ends are not reported
		f.mu.Lock()
		f.members = slices.DeleteFunc(f.members, func(o *member) bool { return o == m })
		f.mu.Unlock()
		n := f.begin()
		f.mu.Lock()
		begin(n)
		f.mu.Unlock()
	}
}

// leftOver checks that no caller waits and that Redis counts no ended call as in flight.
func (j *scopesJudge) leftOver(f *callers) {
	for _, m := range f.members {
		m.limiter.mu.Lock()
		if n := m.limiter.alloc.queues.waiting(); n > 0 || len(m.limiter.alloc.queues.all) > 2 || len(m.limiter.alloc.pending.ofBuckets) > 0 {
			f.Errorf("%d wait in %d queues, %d events are pending", n, len(m.limiter.alloc.queues.all), len(m.limiter.alloc.pending.ofBuckets))
		}
		m.limiter.mu.Unlock()
	}
	for _, endpoint := range []string{"f/a", "f/b"} {
		for _, method := range []string{"GET", "POST"} {
			for _, credential := range names(2) {
				for _, key := range []string{"k", "l"} {
					f.one(f.members[0], schemas.High, Call{Endpoint: endpoint, Method: method, Key: key, Credentials: []string{credential}})
				}
			}
		}
	}
	f.passed(2 * time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range f.redis.Keys() {
		switch {
		case strings.HasSuffix(key, ":calls"):
			all, _ := f.redis.ZMembers(key)
			f.Errorf("%s holds %v", key, all)
		case strings.Contains(key, ":p:"):
			f.Errorf("%s still exists", key)
		case strings.Contains(key, ":b:reported"):
			if text, _ := f.redis.Get(key); len(text) > 112 && strings.TrimSpace(text[96:112]) != "0" {
				f.Errorf("%s has %s in flight", key, text[96:112])
			}
		}
	}
}
