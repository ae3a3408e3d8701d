package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// The tests in this file judge freshet as a black box. Each test starts the freshet binary on real
// services and judges only the calls that the upstream of the test receives.

// arrival is one call at the upstream of a test.
type arrival struct {
	at         time.Time
	path       string
	credential string // value of the header X-Key
}

// upstreamLog is an upstream that records its calls.
type upstreamLog struct {
	mu    sync.Mutex
	calls []arrival
}

func (u *upstreamLog) add(r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, arrival{time.Now(), r.URL.Path, r.Header.Get("X-Key")})
}

// matching returns the times of the calls for which the function `match` returns true.
func (u *upstreamLog) matching(match func(arrival) bool) (all []time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range u.calls {
		if match(a) {
			all = append(all, a.at)
		}
	}
	return all
}

func pathPrefix(prefix string) func(arrival) bool {
	return func(a arrival) bool { return strings.HasPrefix(a.path, prefix) }
}

// matrixSite is an installation with one source, whose upstream runs in the test process.
type matrixSite struct {
	*fleet
	upstreamLog
	kafka *kgo.Client
}

// newMatrixSite starts an installation with a worker. config is the configuration of the source
// without its baseURL. respond is the handler of the upstream; if it is nil, the upstream responds to
// each call with an empty JSON object.
func newMatrixSite(t *testing.T, config string, respond http.HandlerFunc) *matrixSite {
	t.Helper()
	if respond == nil {
		respond = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) }
	}
	m := &matrixSite{fleet: newSite(t)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.add(r)
		respond(w, r)
	}))
	m.OnClose(server.Close)
	m.Source, m.MaxPartitions = servicetest.Name("matrix"), 4
	m.Sources = map[string]string{m.Source: "baseURL: " + server.URL + "\n" + config}
	m.Env = []string{"FIRST=first", "SECOND=second"}
	m.check(m.CreateTables(t.Context()))
	m.connect()
	var err error
	m.kafka, err = m.ConnectKafka()
	m.check(err)
	m.OnClose(m.kafka.Close)
	m.worker()
	return m
}

// request publishes an update request for each key. It uses Kafka directly, because the query
// service limits the outstanding requests of a client.
func (m *matrixSite) request(lane schemas.Lane, facet string, keys ...string) {
	m.Helper()
	m.check(m.Publish(m.Context(), m.kafka, facet, lane, keys...))
}

// untilCalls waits until the upstream has received n matching calls, and returns their times.
func (m *matrixSite) untilCalls(limit time.Duration, n int, match func(arrival) bool) (times []time.Time) {
	m.Helper()
	m.until(limit, fmt.Sprint(n, " calls"), func() bool {
		times = m.matching(match)
		return len(times) >= n
	})
	return times
}

// maxWithin returns the maximum number of elements of `times` that lie within one period of the given
// length.
func maxWithin(times []time.Time, length time.Duration) (most int) {
	slices.SortFunc(times, time.Time.Compare)
	for first, last := 0, 0; last < len(times); last++ {
		for times[last].Sub(times[first]) >= length {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// Calls with a cost must use at least 95 % of a window's limit, and never more than the limit.
func TestMatrix_CostUsesTheWindow(t *testing.T) {
	t.Parallel()
	const cost, limit, windows = 100, 500, 3
	// A busy machine can delay a call between the worker and the upstream by more than the default
	// jitter of 10 ms.
	m := newMatrixSite(t, fmt.Sprintf(`
quota: {jitter: %v, policies: [{name: points, limit: 500, window: 10s, unit: points}]}
facets:
  item: {documents: {item: {path: "/item/{key}", cost: {points: 100}}}, freshFor: 1h}
`, withLoad(10*time.Millisecond, 190*time.Millisecond)), nil)
	const calls = windows*limit/cost + 1
	m.request(schemas.High, "item", harness.Keys("k", calls)...)
	times := m.untilCalls(timeout+windows*10*time.Second, calls, pathPrefix("/item/"))
	atMost(t, "calls in any 10 s", maxWithin(times, 10*time.Second), limit/cost)
	// If 95 % of the limit are used, three windows of 10 s take at most 30 s / 0.95. A busy machine
	// may delay each window by a second.
	took := times[len(times)-1].Sub(times[0])
	t.Logf("%d units in %v: %.1f %% of the limit", windows*limit, took.Round(time.Millisecond), 100*windows*10/took.Seconds())
	atMost(t, "time of three windows", took, withLoad(windows*10*time.Second*100/95, windows*time.Second))
}

// withLoad returns the limit, plus an allowance unless the machine has no other load.
func withLoad(limit, allowance time.Duration) time.Duration {
	if *quietMachine {
		return limit
	}
	return limit + allowance
}

// A credential that the upstream has refused must be probed and used again, although the other
// credential can use the whole quota of the source.
func TestMatrix_RefusedCredentialIsUsedAgain(t *testing.T) {
	t.Parallel()
	var refusedUntil struct {
		sync.Mutex
		end time.Time
	}
	m := newMatrixSite(t, `
auth: {header: X-Key}
credentials: [{name: one, secretEnv: FIRST}, {name: two, secretEnv: SECOND}]
quota: {policies: [{name: second, limit: 20, window: 1s}]}
facets:
  item: {documents: {item: {path: "/item/{key}"}}, freshFor: 1h}
`, func(w http.ResponseWriter, r *http.Request) {
		refusedUntil.Lock()
		refused := time.Now().Before(refusedUntil.end)
		refusedUntil.Unlock()
		if refused && r.Header.Get("X-Key") == "first" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{}`))
	})
	of := func(credential string) func(arrival) bool {
		return func(a arrival) bool { return a.credential == credential }
	}
	m.request(schemas.High, "item", harness.Keys("good", 40)...)
	m.untilCalls(timeout, 1, of("first"))
	m.untilCalls(timeout, 40, pathPrefix("/item/"))

	refusedUntil.Lock()
	refusedUntil.end = time.Now().Add(12 * time.Second)
	end := refusedUntil.end
	refusedUntil.Unlock()
	n, after := 0, 0
	m.until(withBusy(time.Minute), "ten calls with the credential after its refusals", func() bool {
		m.request(schemas.High, "item", fmt.Sprint("more", n))
		n++
		after = len(m.matching(func(a arrival) bool { return a.credential == "first" && a.at.After(end) }))
		return after >= 10
	})
	refusals := m.matching(func(a arrival) bool {
		return a.credential == "first" && a.at.After(end.Add(-9*time.Second)) && a.at.Before(end)
	})
	back := m.matching(func(a arrival) bool { return a.credential == "first" && a.at.After(end) })
	t.Logf("credential used again %v after the upstream accepted it; %d refused calls in 9 s before", back[0].Sub(end).Round(time.Millisecond), len(refusals))
	atMost(t, "calls with the refused credential in 9 s, from 3 s after the first refusal", len(refusals), 3)
}

// The LOW lane must get the calls of its reserve while hundreds of HIGH requests wait.
func TestMatrix_LowKeepsItsReserve(t *testing.T) {
	t.Parallel()
	m := newMatrixSite(t, `
quota: {policies: [{name: second, limit: 20, window: 1s, lowReserve: 2}]}
facets:
  item: {documents: {item: {path: "/item/{key}"}}, freshFor: 1h}
`, nil)
	m.request(schemas.High, "item", harness.Keys("high", 900)...)
	m.untilCalls(timeout, 20, pathPrefix("/item/high"))
	m.request(schemas.Low, "item", harness.Keys("low", 100)...)
	begin := time.Now()
	low := m.untilCalls(timeout, 30, pathPrefix("/item/low"))
	high := m.matching(func(a arrival) bool { return strings.HasPrefix(a.path, "/item/high") && a.at.After(begin) })
	t.Logf("LOW: 30 calls in %v; HIGH: %d calls meanwhile", low[len(low)-1].Sub(begin).Round(time.Millisecond), len(high))
	// LOW has a reserve of 2 calls/s, so its 30 calls take 15 s. On a busy machine half of that rate
	// is enough.
	atMost(t, "time of 30 calls of LOW", low[len(low)-1].Sub(begin), withLoad(18*time.Second, 15*time.Second))
	if waiting := 900 - len(m.matching(pathPrefix("/item/high"))); waiting < 100 {
		t.Errorf("HIGH requests that still wait: got %d, want at least 100", waiting)
	}
	// A busy worker misses some time slots of HIGH, and LOW uses the quota of these time slots. HIGH
	// must still get more calls than LOW.
	atLeast(t, "calls of HIGH meanwhile", len(high), len(low)+1)
}

// A trigger with `quiet: 5s` must wait until no change was stored for 5 s. Then it must refresh its
// target facet once.
func TestMatrix_TriggerWaitsForQuiet(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	changes := 0
	m := newMatrixSite(t, `
quota: {policies: [{name: second, limit: 50, window: 1s}]}
facets:
  progress: {documents: {progress: {path: "/progress/{key}"}}, freshFor: 1s, cooldown: 0s}
  general: {documents: {general: {path: "/general/{key}"}}, freshFor: 1h, cooldown: 0s}
prefetch:
  facets:
    progress: {mode: tiers, triggers: {general: {backoff: 0s, quiet: 5s, maxDelay: 1m}}}
`, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(r.URL.Path, "/progress/") {
			changes++
		}
		_ = json.NewEncoder(w).Encode(map[string]int{"version": changes})
	})
	_, err := m.Scheduler(t.Context(), "scheduler")
	m.check(err)
	progress := pathPrefix("/progress/a")
	for n := range 4 {
		m.until(timeout, "the next check of progress", func() bool {
			m.request(schemas.High, "progress", "a")
			return len(m.matching(progress)) > n
		})
	}
	times := m.untilCalls(timeout, 1, pathPrefix("/general/a"))
	checks := m.matching(progress)
	last := checks[len(checks)-1]
	t.Logf("refresh %v after the last change", times[0].Sub(last).Round(time.Millisecond))
	atLeast(t, "time from the last change to the refresh", times[0].Sub(last), 5*time.Second)
	// After another 7 s without a change there must be no second refresh.
	m.check(harness.Pause(t.Context(), 7*time.Second))
	equal(t, "refreshes of the target", len(m.matching(pathPrefix("/general/a"))), 1)
}

// While most of the quota is unused, the adaptive schedule must shorten the prefetch intervals of
// entities that no client reads, down to minInterval.
func TestMatrix_AdaptiveUsesAnIdleBudget(t *testing.T) {
	longOnly(t)
	t.Parallel()
	const entities = 40
	m := newMatrixSite(t, `
quota: {policies: [{name: second, limit: 100, window: 1s}]}
facets:
  item: {documents: {item: {path: "/item/{key}"}}, freshFor: 1h, cooldown: 1s}
prefetch:
  facets:
    item: {mode: adaptive, minInterval: 1m, cooldown: {automatic: 1s, manual: 1s}}
`, nil)
	_, err := m.Scheduler(t.Context(), "scheduler")
	m.check(err)
	m.check(m.Register(t.Context(), "item", entities))
	m.untilCalls(20*time.Minute, 4*entities, pathPrefix("/item/"))
	for _, key := range harness.Keys("due-", entities) {
		atLeast(t, "calls for "+key, len(m.matching(func(a arrival) bool { return a.path == "/item/"+key })), 3)
	}
}
