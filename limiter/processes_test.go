//go:build unix

package limiter_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
)

const (
	ms          = time.Millisecond
	waitTimeout = 20 * time.Second
	// lapse is the longest time from the reservation of a permit to the arrival of its call: the
	// limiter's horizon (150 ms), the permit's lifetime (40 ms), 10 ms in the network, and a margin
	// for a slow machine.
	lapse = 300 * ms
	// recovery is the longest time until permits are granted again: a retry per second and a
	// quiet period of 1.2 s.
	recovery = 3 * time.Second
)

// fleet is a set of worker processes, the Redis that they share, and the upstream. The upstream
// runs in the test process and checks the limit.
type fleet struct {
	testing.TB
	job     job
	redis   *servicetest.RedisServer
	workers []*process
	judge   *simulator.Simulator
	most    int // maximum number of calls in a sliding second, as the method keeps last computed it

	mu       sync.Mutex
	arrivals []arrival
}

type arrival struct {
	at   time.Time
	lane string
}

// ServeHTTP records the arrival of a call. The simulator f.judge records it too, and checks the
// limit.
func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.arrivals = append(f.arrivals, arrival{time.Now(), r.URL.Query().Get("character_name")})
	f.mu.Unlock()
	f.judge.ServeHTTP(w, r)
}

func newFleet(t testing.TB, workers int, options ...string) *fleet {
	t.Helper()
	f := &fleet{TB: t, redis: servicetest.PrivateRedis(t, options...)}
	f.judge = simulator.New(simulator.Config{
		Limits:  []simulator.Limit{{Limit: 500, Window: time.Second}},
		Latency: simulator.Range{Min: 2 * ms, Max: 20 * ms},
	})
	upstream := httptest.NewServer(f)
	t.Cleanup(upstream.Close)
	t.Cleanup(f.judge.Close)
	f.job = job{Source: servicetest.Name("nexon"), Redis: f.redis.Address, Upstream: upstream.URL, High: 20, Low: 44}
	for range workers {
		f.workers = append(f.workers, newProcess(t, f.job))
	}
	return f
}

// since returns the calls that arrived since `from`, and their number by lane.
func (f *fleet) since(from time.Time) (byLane map[string]int, all []arrival) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := len(f.arrivals)
	for first > 0 && f.arrivals[first-1].at.After(from) {
		first--
	}
	byLane = map[string]int{}
	for _, a := range f.arrivals[first:] {
		byLane[a.lane]++
	}
	return byLane, append([]arrival(nil), f.arrivals[first:]...)
}

// flow waits until this number of further calls has arrived, but at most for the time `within`.
func (f *fleet) flow(within time.Duration, calls int) {
	f.Helper()
	from := time.Now()
	servicetest.WaitFor(f, within, "a flow of permits", func() bool {
		_, all := f.since(from)
		return len(all) >= calls
	})
}

// sleep waits in real time. During this time the test expects that nothing happens.
func sleep(d time.Duration) { <-time.After(d) }

// keeps fails the test if the limit was ever exceeded. `what` describes the part of the test.
func (f *fleet) keeps(what string) {
	f.Helper()
	s := f.judge.Stats()
	f.Logf("%s: %d arrivals so far, at most %d in a sliding second", what, s.Arrivals, s.MaxInSlidingSecond)
	if refused := s.Refused + s.ByStatus[http.StatusTooManyRequests]; s.MaxInSlidingSecond > max(500, f.most) || refused > 0 {
		f.Errorf("%s: limit exceeded: %d in a second, %d refused", what, s.MaxInSlidingSecond, refused)
	}
	f.most = s.MaxInSlidingSecond
	if s.UnknownPathCalls+s.UnknownParameterCalls > 0 || s.ByStatus[http.StatusOK] == 0 {
		f.Errorf("%s: unexpected calls: %v %v", what, s.UnknownPaths, s.ByStatus)
	}
}

// counters returns the counters of each worker.
func (f *fleet) counters() (all []counters) {
	f.Helper()
	for _, w := range f.workers {
		all = append(all, w.counters())
	}
	return all
}

// outage makes Redis unavailable for the time d (away), and available again (back). While Redis is
// unavailable, no call may arrive at the upstream after the granted permits have expired, and each
// process may call Redis at most once a second. Afterwards permits must be granted again. If lost is
// true, Redis can have lost its state, so a quiet period comes first.
func (f *fleet) outage(what string, d time.Duration, lost bool, away, back func()) {
	f.Helper()
	away()
	gone := time.Now()
	before := f.counters()
	sleep(d)
	after := f.counters()
	down := time.Since(gone)
	_, late := f.since(gone.Add(lapse))
	_, last := f.since(gone)
	if len(late) > 0 {
		f.Errorf("%s: %d calls arrived without Redis, the last %v after it stopped", what, len(late), late[len(late)-1].at.Sub(gone))
	}
	probes, dials := 0.0, 0.0
	for i := range before {
		probes = max(probes, after[i][callsTotal]-before[i][callsTotal])
		dials = max(dials, after[i][dialsTotal]-before[i][dialsTotal])
	}
	// A process can have one call to Redis in flight when Redis stops. It repeats this call soon,
	// and then calls Redis once a second. A report can need one more connection.
	if most := down.Seconds() + 2; probes > most || dials > most+1 {
		f.Errorf("%s: a process called Redis %v times and tried %v connections in %v without it", what, probes, dials, down)
	}

	returning := time.Now()
	back()
	f.flow(recovery, 1)
	_, first := f.since(returning)
	quiet, lastIn := first[0].at.Sub(returning), time.Duration(0)
	if n := len(last); n > 0 {
		lastIn = last[n-1].at.Sub(gone)
	}
	f.Logf("%s: down for %v, the last call %v after, %v calls and %v connections of a process; permits again after %v",
		what, down.Round(ms), lastIn.Round(ms), probes, dials, quiet.Round(ms))
	if lost && quiet < time.Second {
		f.Errorf("%s: a call arrived %v after the return, before the quiet period was over", what, quiet)
	}
	f.flow(waitTimeout, 450) // wait for 450 calls, so that `keeps` can detect a burst after the outage
	f.keeps(what)
}

func TestFleet_KeepsTheLimitUnderFaults(t *testing.T) {
	f := newFleet(t, 3, "--appendonly", "yes", "--appendfsync", "everysec")
	f.flow(waitTimeout, 150) // after 150 calls the quiet period is over and the bursts are used up
	f.stop("a process stopped and resumed", 2*time.Second, f.workers[0])
	f.replace(1)
	f.stop("all processes stopped and resumed", 500*ms, f.workers...)
	f.saturate(2 * time.Second)
	f.outage("Redis killed and started with its data", 2*time.Second, true, f.redis.Kill, f.redis.Start)
	f.outage("Redis killed and started empty", 300*ms, true, f.redis.Kill, func() { f.redis.DeleteData(); f.redis.Start() })
	f.outage("Redis stopped", time.Second, false, f.redis.Freeze, f.redis.Continue)
	f.failover()
}

// stopOnce suspends the workers for the duration d. It returns how many permits expired
// meanwhile.
func (f *fleet) stopOnce(d time.Duration, workers []*process) (lapsed float64) {
	f.Helper()
	for _, w := range workers {
		lapsed -= w.counters()[lapsedTotal]
	}
	for _, w := range workers {
		w.signal(syscall.SIGSTOP)
	}
	sleep(d)
	for _, w := range workers {
		w.signal(syscall.SIGCONT)
	}
	for _, w := range workers {
		resumed := w.counters()
		servicetest.WaitFor(f, waitTimeout, "a permit of a resumed process", func() bool { return w.counters()[acquiredTotal] > resumed[acquiredTotal] })
		lapsed += w.counters()[lapsedTotal]
	}
	return lapsed
}

// saturate checks that the processes use almost the whole limit under constant demand.
func (f *fleet) saturate(d time.Duration) {
	f.Helper()
	from := time.Now()
	sleep(d)
	byLane, all := f.since(from)
	took := time.Since(from).Seconds()
	used, high := float64(len(all))/took/450, float64(byLane["HIGH"])/took
	f.Logf("saturated: %.1f %% of 450 a second, HIGH %.1f a second, LOW %.1f", 100*used, high, float64(byLane["LOW"])/took)
	if used < 0.97 {
		f.Errorf("%.1f %% of the budget used under saturation; want 97", 100*used)
	}
	if high < 95 || byLane["LOW"] == 0 {
		f.Errorf("HIGH had %.1f a second of its reserve of 100, LOW %d calls in all", high, byLane["LOW"])
	}
	f.keeps("saturated")
}

// stop suspends the workers for the time d, so that the permits which they hold expire. If no worker
// has held a permit, it tries again, up to five times.
func (f *fleet) stop(what string, d time.Duration, workers ...*process) {
	f.Helper()
	lapsed := 0.0
	for tries := 0; lapsed == 0 && tries < 5; tries++ {
		lapsed = f.stopOnce(d, workers)
	}
	f.Logf("%s: %v permits expired", what, lapsed)
	if lapsed == 0 {
		f.Errorf("%s: no permit expired", what)
	}
	f.keeps(what)
}

// replace kills a process and starts another.
func (f *fleet) replace(i int) {
	f.Helper()
	f.workers[i].kill()
	f.workers[i] = newProcess(f.TB, f.job)
	servicetest.WaitFor(f, waitTimeout, "a permit of the new process", func() bool { return f.workers[i].counters()[acquiredTotal] > 0 })
	f.keeps("a process killed and another started")
}

// failover makes a replica the primary. The replica lacks the writes of the last half second.
func (f *fleet) failover() {
	f.Helper()
	key := "quota:{" + f.job.Source + "}:state"
	replica := f.redis.Replica()
	state := func(s *servicetest.RedisServer) string {
		text, err := s.Client.Get(f.Context(), key).Result()
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	replica.StopReplication()
	behind := state(replica)
	f.flow(waitTimeout, 225)
	if state(f.redis) == behind || state(replica) != behind {
		f.Fatal("the replica lacks no writes, so the failover tests nothing")
	}
	f.outage("a replica promoted without its tail", 300*ms, true, f.redis.Kill, func() {
		replica.Promote()
		for _, w := range f.workers {
			w.moveTo(replica.Address)
		}
	})
}

func TestFleet_NoticesAStoppedRedis(t *testing.T) {
	server := servicetest.PrivateRedis(t)
	reg := prometheus.NewRegistry()
	l, ctx := run(t, servicetest.Name("nexon"), reg, server.Address)
	acquire := func() error {
		p, err := l.Acquire(ctx, schemas.Low, limiter.Call{})
		if err == nil {
			p.Release()
		}
		return err
	}
	if err := acquire(); err != nil {
		t.Fatal(err)
	}
	sleep(lapse) // wait until permits granted earlier are used up or expired

	server.Freeze()
	asked := time.Now()
	waiter := make(chan error, 1)
	go func() { waiter <- acquire() }()
	servicetest.WaitFor(t, waitTimeout, "a failed call to the stopped Redis", func() bool { return counted(t, reg)[failuresTotal] > 0 })
	noticed := time.Since(asked)
	t.Logf("noticed after %v", noticed)
	if noticed > 400*ms {
		t.Errorf("a stopped Redis was noticed after %v; want about 150 ms", noticed)
	}
	select {
	case err := <-waiter:
		t.Fatalf("without Redis: got a permit or %v", err)
	default:
	}
	server.Continue()
	returned := time.Now()
	if err := <-waiter; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(returned); took > recovery {
		t.Errorf("a permit %v after Redis came back", took)
	}
}
