package e2e

import (
	"cmp"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// failure is a test of one way in which an upstream fails: the configuration, and the checks of
// freshet's reaction.
type failure struct {
	edit  func(config string) string // changes the source's configuration; may be nil
	test  func(c *testSource)
	order int // tests with a higher order start first, because they take longer
}

// outageOfOneFault is how long a source-wide fault lasts.
const outageOfOneFault = 5 * time.Second

// recovery bounds the time from the end of an outage of five seconds until all entities are fresh. It
// includes the wait for the next probe or for the end of the backoff, and the calls after the wait.
const recovery = 10 * time.Second

// The maximum numbers of calls in the last three seconds of an outage: with an open circuit
// breaker, and with a repeated backoff. An open breaker sends one probe in that time, and another
// call may be in flight. After each backoff some calls are sent until the next refusal.
const maxProbed, maxBackedOff = 2, 40

// sourceWide returns a test with a fault of all calls that lasts outageOfOneFault. Afterwards all
// entities must be fresh within the recovery time, without dead letters. In the last three seconds
// of the fault there may be at most maxCalls calls.
func sourceWide(maxCalls int, fault func(now time.Time) simulator.Fault) func(*testSource) {
	return func(c *testSource) {
		c.request(harness.Keys("before", 30)...)
		c.untilChecked(timeout, time.Now())
		began := time.Now()
		c.fail(fault(began))
		c.request(harness.Keys("crowd", 30)...)
		c.trickle("k", 20, began.Add(2*time.Second))
		known := c.upstream.Stats().Arrivals
		c.trickle("later", 20, began.Add(outageOfOneFault))
		seen := c.upstream.Since(known, time.Second)
		c.fail()
		took := c.untilChecked(withBusy(recovery), time.Now())
		c.T.Logf("%d calls in the first two seconds, %d in the next three; all %d entities fresh %v after the end",
			known-30, seen.Arrivals, len(c.keys), took.Round(10*time.Millisecond))
		limit := maxCalls
		if *quietMachine {
			atMost(c.T, "time to recover", took, recovery)
		} else {
			limit += 30 // allow more calls: on a busy machine the circuit breaker opens later
		}
		atMost(c.T, "calls to an upstream that is known to fail", seen.Arrivals, limit)
		c.expectEnd(0)
	}
}

// always returns a function that returns the fault f for every start time of an outage.
func always(f simulator.Fault) func(time.Time) simulator.Fault {
	return func(time.Time) simulator.Fault { return f }
}

// refusedWith returns a fault that answers calls with 429 and the given response header.
func refusedWith(name, value string) func(time.Time) simulator.Fault {
	return always(simulator.Fault{Kind: simulator.TooManyRequests, Headers: map[string]string{name: value}})
}

// failures returns all tests of failures, by a description of the upstream's behaviour.
func failures(t *testing.T) map[string]failure {
	secret := filepath.Join(t.TempDir(), "secret")
	return map[string]failure{
		"500":         {test: sourceWide(maxProbed, always(simulator.Fault{Kind: simulator.InternalError}))},
		"html":        {test: sourceWide(maxProbed, always(simulator.Fault{Kind: simulator.HTML200}))},
		"bad-key":     {test: sourceWide(maxProbed, always(simulator.Fault{Kind: simulator.BadKey}))},
		"maintenance": {test: sourceWide(maxProbed, always(simulator.Fault{Kind: simulator.Maintenance})), order: 1},
		"game":        {test: sourceWide(maxProbed, always(simulator.Fault{Kind: simulator.GameMaintenance})), order: 1},

		"429":       {test: sourceWide(maxBackedOff, always(simulator.Fault{Kind: simulator.TooManyRequests}))},
		"429-after": {test: sourceWide(maxBackedOff, always(simulator.Fault{Kind: simulator.TooManyRequests, RetryAfter: "4"}))},
		"429-date": {test: sourceWide(maxBackedOff, func(now time.Time) simulator.Fault {
			return simulator.Fault{Kind: simulator.TooManyRequests, RetryAfter: now.Add(outageOfOneFault).UTC().Format(http.TimeFormat)}
		})},
		"429-ratelimit": {test: sourceWide(maxBackedOff, refusedWith("RateLimit", `"minute";r=9;t=40, "second";r=0;t=4`))},
		"429-reset":     {test: sourceWide(maxBackedOff, refusedWith("RateLimit-Reset", "4"))},
		"429-x-after":   {test: sourceWide(maxBackedOff, refusedWith("X-RateLimit-Reset-After", "4.5"))},
		"429-x-epoch": {test: sourceWide(maxBackedOff, func(now time.Time) simulator.Fault {
			at := strconv.FormatInt(now.Add(outageOfOneFault).Unix(), 10)
			return simulator.Fault{Kind: simulator.TooManyRequests, Headers: map[string]string{"X-RateLimit-Reset": at}}
		})},
		"429-x-requests": {test: sourceWide(maxBackedOff, refusedWith("X-RateLimit-Reset-Requests", "4s"))},

		"day-refused": {test: upstreamsDayIsUsedUp},
		"day-own":     {edit: smallDay, test: ownDayIsUsedUp},
		"renewed": {edit: func(config string) string {
			if err := os.WriteFile(secret, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			return strings.Replace(config, "secretEnv: NEXON_API_KEY", "secretFile: "+secret, 1)
		}, test: func(c *testSource) { credentialIsRenewed(c, secret) }},
		"notfound":    {test: missingEntitiesAreRead},
		"not-ready":   {test: notReadyIsRetried},
		"refused-one": {test: oneEntityIsRefused},
		"broken-one":  {test: oneEntityFails},
		"poison":      {test: deadLetterTopicIsMissing, order: 2},
	}
}

// Each failure is tested on its own source. Eight tests run at once, because they mostly wait.
func TestUpstreamFailure_EndsAsDesigned(t *testing.T) {
	t.Parallel()
	all := failures(t)
	edits := map[string]func(string) string{}
	for name, f := range all {
		edits[name] = f.edit
	}
	s := newSources(t, 2, 1, edits)
	var tests sync.WaitGroup
	slots := make(chan struct{}, 8) // at most 8 tests at once; t.Parallel would limit them by the number of CPUs
	names := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(names, func(a, b string) int { return -cmp.Compare(all[a].order, all[b].order) })
	for _, name := range names {
		slots <- struct{}{}
		tests.Go(func() {
			t.Run(name, func(t *testing.T) { all[name].test(s.of(t, name)) })
			<-slots
		})
	}
	tests.Wait()
}
