package e2e

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
)

// demand is the number of reads per second. It equals the rate of calls that the LOW lane may use.
const demand = 350

// designedProbes returns the times at which probes must be sent during an outage of this length,
// relative to the opening of the circuit breaker: after 5 s, and then after pauses that double up
// to a minute.
func designedProbes(length time.Duration) (all []time.Duration) {
	at, pause := 5*time.Second, 5*time.Second
	for at <= length {
		all = append(all, at)
		pause = min(2*pause, time.Minute)
		at += pause
	}
	return all
}

func TestTotalOutage_LeavesNoFailures(t *testing.T) {
	t.Parallel()
	length := *outageLength
	if length < 10*time.Second {
		t.Fatalf("-outage=%v: want at least 10s", length)
	}
	s := newSources(t, 24, 2, map[string]func(string) string{"outage": nil})
	c := s.of(t, "outage")
	// The keys are read in turn, again and again. A key is read again only after its lock has
	// expired. The repeated read must cause no further call.
	round := harness.Keys("k", int(min(length/3, 40*time.Second).Seconds()*demand))
	const before = 200
	c.request(harness.Keys("before", before)...)
	c.untilChecked(timeout, time.Now())

	mark := c.upstream.Stats().Arrivals
	c.fail(simulator.Fault{Kind: simulator.InternalError})
	began := time.Now()
	visits := c.readSteadily(round, began.Add(length))
	c.keys = append(c.keys, round[:min(len(round), visits)]...)
	rows, deadLetters := c.failureRows(true), c.deadLetters()
	c.fail()
	ended := time.Now()
	calls := c.failedCalls(mark)
	t.Logf("%v of outage, %d reads of %d entities", ended.Sub(began).Round(time.Millisecond), visits, len(c.keys))
	expectProbes(t, calls, length)
	equal(t, "dead letters at the end of the outage", deadLetters, 0)
	if len(rows) > 0 {
		t.Errorf("rows of failures at the end of the outage: got %v, want only scheduled retries that count no failure", rows)
	}

	// The next probe is sent at most a minute after the end of the outage. Then the limiter allows
	// half the rate for ten seconds, and about 400 calls a second afterwards.
	limit := time.Minute + 10*time.Second + time.Duration(len(c.keys))*time.Second/400 + 5*time.Second
	took := c.untilChecked(limit, ended)
	after := c.upstream.Since(mark+len(calls), time.Second)
	t.Logf("all %d entities fresh %v after the end, with %d calls, at most %d in a second", len(c.keys), took.Round(10*time.Millisecond), after.Arrivals, after.MaxInWindow)
	// Each entity has several records. After the first fetch of an entity the worker skips the
	// entity's remaining records, which takes some time.
	c.within(timeout+time.Duration(visits)*time.Second/1000, "the commit of every offset", func() bool { return c.lag() == 0 })
	equal(t, "dead letters afterwards", c.deadLetters(), 0)
	if rows := c.failureRows(false); len(rows) > 0 {
		t.Errorf("rows of failures afterwards: got %v, want none", rows)
	}
	stats := c.upstream.Stats()
	equal(t, "refused calls", stats.Refused, 0)
	atMost(t, "calls in a sliding second", stats.MaxInSlidingSecond, 500)
	atMost(t, "calls more than there are entities", after.Arrivals-(len(c.keys)-before), len(c.keys)/20)
}

// expectProbes checks the times of the failed calls. The calls of the first two seconds open the
// circuit breaker. All later calls must be probes. The circuit breaker opens after the first call, so
// no probe may come earlier after the first call than its time in designedProbes.
func expectProbes(t *testing.T, calls []time.Duration, length time.Duration) {
	t.Helper()
	known := 0
	for known < len(calls) && calls[known] < calls[0]+2*time.Second {
		known++
	}
	if known == 0 {
		t.Fatal("failed calls: got 0, want some")
	}
	probes, want := calls[known:], designedProbes(length)
	t.Logf("%d calls showed the outage, %d probes", known, len(probes))
	atMost(t, "probes", len(probes), len(want))
	for i, at := range probes {
		after := at - calls[0]
		t.Logf("probe %d came %v after the first call", i+1, after.Round(time.Millisecond))
		if i < len(want) {
			atLeast(t, "time of a probe", after, want[i])
		}
	}
}

// readSteadily reads the keys in turn until the given time, at a constant rate (the constant
// `demand`, in reads per second). It returns the number of reads.
func (c *testSource) readSteadily(keys []string, until time.Time) (n int) {
	c.T.Helper()
	began := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	next := make(chan string, len(keys))
	var readers sync.WaitGroup
	for range 32 {
		readers.Go(func() {
			for key := range next {
				if err := c.queued(key); err != nil {
					c.T.Error(err)
				}
			}
		})
	}
	for now := began; now.Before(until); now = <-tick.C {
		for ; n < int(now.Sub(began).Seconds()*demand); n++ {
			next <- keys[n%len(keys)]
		}
	}
	close(next)
	readers.Wait()
	return n
}

// failureRows returns key, state and error of up to ten entities with a recorded failure. If
// allowRetries is true, it skips scheduled retries that do not count as a failure. A worker schedules
// such a retry for each call that was sent before the circuit breaker opened and ended afterwards.
func (c *testSource) failureRows(allowRetries bool) (some []string) {
	c.T.Helper()
	const batch = 500
	for from := 0; from < len(c.keys) && len(some) < 10; from += batch {
		var of []schemas.Entity
		for _, key := range c.keys[from:min(len(c.keys), from+batch)] {
			of = append(of, c.entity(key))
		}
		all, err := c.store.Statuses(c.T.Context(), of)
		c.must(err)
		for _, s := range all {
			if s.State == "" || (allowRetries && s.State == store.Retrying && s.Rounds == 0) {
				continue
			}
			some = append(some, s.Entity.Key+" "+string(s.State)+" "+s.Error)
		}
	}
	return some
}

// failedCalls returns the times of the failed calls, as durations since the start of the upstream.
// `skip` is the number of calls at the beginning of the upstream's log that failedCalls ignores.
func (c *testSource) failedCalls(skip int) (at []time.Duration) {
	c.T.Helper()
	lines := strings.Split(strings.TrimSpace(get(c.T, c.upstream, "/_arrivals")), "\n")
	for _, line := range lines[skip:] {
		var a struct {
			At    int64          `json:"at"` // time of the call in microseconds since the upstream's start
			Fault simulator.Kind `json:"fault"`
		}
		c.must(json.Unmarshal([]byte(line), &a))
		if a.Fault != "" {
			at = append(at, time.Duration(a.At)*time.Microsecond)
		}
	}
	return at
}
