package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// upstreamsDayIsUsedUp checks that all requests wait if the upstream refuses calls for ten hours.
// No request becomes a dead letter, and no failure is recorded.
func upstreamsDayIsUsedUp(c *testSource) {
	c.request(harness.Keys("before", 10)...)
	c.untilChecked(timeout, time.Now())
	before := c.upstream.Stats().Arrivals
	one := 1
	c.fail(simulator.Fault{Kind: simulator.TooManyRequests, RetryAfter: "36000", Count: &one})
	c.request("the-one-more")
	c.within(timeout, "the refusal", func() bool { return c.upstream.Stats().ByStatus[http.StatusTooManyRequests] == 1 })
	c.request(harness.Keys("k", 100)...)
	c.trickle("t", 20, time.Now().Add(2*time.Second))
	const inFlight = 5 // maximum number of calls in flight when the upstream responds with 429, including the call that gets the 429
	atMost(c.T, "calls to an upstream that refuses for ten hours", c.upstream.Stats().Arrivals-before, inFlight)
	atLeast(c.T, "records that wait", c.lag(), 100)
	equal(c.T, "dead letters", c.deadLetters(), 0)
	for _, key := range c.keys[10:] {
		equal(c.T, "state of "+key, c.status(key).State, "")
	}
	// The upstream refuses calls for ten hours. Deleting the limiter's state in Redis has the
	// same effect as the end of these ten hours.
	c.must(c.redis.Del(c.T.Context(), "quota:{"+c.source+"}:state").Err())
	took := c.untilChecked(withBusy(recovery), time.Now())
	c.T.Logf("all fresh %v after the backoff", took.Round(10*time.Millisecond))
	c.expectEnd(0)
}

const smallDayLimit = 40

// smallDay returns the configuration with a daily limit of smallDayLimit calls. The day is
// counted in a time zone where it is noon now, so that the day does not end during the test.
func smallDay(config string) string {
	zone := fmt.Sprintf("Etc/GMT%+d", time.Now().UTC().Hour()-12) // the sign is inverted: Etc/GMT-9 is nine hours ahead of UTC
	old := "{name: day, limit: 20000000, window: day, timeZone: Asia/Seoul, highReserve: 25/s}"
	if !strings.Contains(config, old) {
		panic("the reference source has another policy of the day")
	}
	return strings.Replace(config, old, fmt.Sprintf("{name: day, limit: %d, window: day, timeZone: %s}", smallDayLimit, zone), 1)
}

// ownDayIsUsedUp checks that no call is made after the configured daily limit is used up, until an
// operator raises the limit.
func ownDayIsUsedUp(c *testSource) {
	c.request(harness.Keys("k", 100)...)
	c.within(timeout, "the last call of the day", func() bool { return c.upstream.Stats().Arrivals == smallDayLimit })
	c.trickle("t", 20, time.Now().Add(2*time.Second))
	equal(c.T, "calls of the day", c.upstream.Stats().Arrivals, smallDayLimit)
	equal(c.T, "dead letters", c.deadLetters(), 0)
	_, err := c.Command(c.T.Context(), "settings", "set", "--source", c.source, "--addr", c.api, "day.limit=100000")
	c.must(err)
	took := c.untilChecked(withBusy(recovery), time.Now())
	c.T.Logf("all fresh %v after the limit was raised", took.Round(10*time.Millisecond))
	c.expectEnd(0)
}

// credentialIsRenewed checks that the worker uses a new secret in the credential's file at once.
// It must not wait for the next probe of the circuit breaker.
func credentialIsRenewed(c *testSource, file string) {
	renewed := "new"
	c.must(c.upstream.Control(simulator.Control{APIKey: &renewed}))
	c.request(harness.Keys("k", 50)...)
	// The first probe is sent after five seconds and fails. The next probe would follow ten
	// seconds later, so write the new secret after the first probe.
	c.within(timeout, "the first probe", func() bool {
		s := c.upstream.Stats()
		return s.Arrivals > 0 && s.LastArrival.Sub(s.FirstArrival) > 4*time.Second
	})
	c.must(os.WriteFile(file, []byte(renewed), 0o600))
	took := c.untilChecked(withBusy(recovery), time.Now())
	c.T.Logf("all fresh %v after the file has the new secret", took.Round(10*time.Millisecond))
	if *quietMachine {
		atMost(c.T, "time until all are fresh, without a wait for the probe", took, 8*time.Second)
	}
	c.expectEnd(0)
}
