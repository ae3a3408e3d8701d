package main

import (
	"cmp"
	"fmt"
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

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
)

// withBusy is a stated time with what a machine that has other things to do may
// take more. Where it does not spend a probe's permit in time, all wait for the next
// one, twice as far away; where figures are judged, that is a miss.
func withBusy(stated time.Duration) time.Duration {
	if timed() {
		return stated + 5*time.Second
	}
	return stated + time.Minute
}

// failure is a way in which an upstream fails, and the test of its end.
type failure struct {
	edit func(config string) string // of the source's configuration
	test func(c *ill)
	long int // those that take the longest begin first
}

const outageLength = 5 * time.Second

// stated is within how long after an outage of five seconds all is fresh: the probe
// or brake that follows at the latest, and the work.
const stated = 10 * time.Second

// sourceWide is trouble of all calls, which ends within the stated time and leaves
// nothing behind. Once it is known, not more than so many calls may be made in it.
func sourceWide(most int, fault func(now time.Time) simulator.Fault) func(*ill) {
	return func(c *ill) {
		c.ask(characters("before", 30)...)
		c.untilFresh(patience, time.Now())
		began := time.Now()
		c.ailing(fault(began))
		c.ask(characters("crowd", 30)...)
		c.trickle("k", 20, began.Add(2*time.Second))
		known := c.upstream.Stats().Arrivals
		c.trickle("later", 20, began.Add(outageLength))
		seen := c.upstream.Since(known, time.Second)
		c.ailing()
		took := c.untilFresh(withBusy(stated), time.Now())
		c.Logf("%d calls in the first two seconds, %d in the next three; all %d entities fresh %v after the end, stated are %v",
			known-30, seen.Arrivals, len(c.keys), took.Round(10*time.Millisecond), stated)
		if !timed() {
			most += 30 // on a busy machine answers that show it are still on their way
		}
		if seen.Arrivals > most {
			c.Errorf("%d calls to an upstream that is known to answer none: %v", seen.Arrivals, seen.ByStatus)
		}
		if timed() && took > stated {
			c.Errorf("fresh %v after the end, stated are %v", took, stated)
		}
		c.aftermath(0)
	}
}

// How many calls may be made while it is known. A probing stop is probed once in that time, and a call may be under way as it
// begins. The end of a brake lets through what is sent until the next refusal.
const probed, braked = 2, 40

// always has each call fail alike.
func always(f simulator.Fault) func(time.Time) simulator.Fault {
	return func(time.Time) simulator.Fault { return f }
}

func refusedWith(name, value string) func(time.Time) simulator.Fault {
	return always(simulator.Fault{Kind: simulator.TooManyRequests, Headers: map[string]string{name: value}})
}

func failures(t *testing.T) map[string]failure {
	secret := filepath.Join(t.TempDir(), "secret")
	return map[string]failure{
		"500":         {test: sourceWide(probed, always(simulator.Fault{Kind: simulator.InternalError}))},
		"html":        {test: sourceWide(probed, always(simulator.Fault{Kind: simulator.HTML200}))},
		"bad-key":     {test: sourceWide(probed, always(simulator.Fault{Kind: simulator.BadKey}))},
		"maintenance": {test: sourceWide(probed, always(simulator.Fault{Kind: simulator.Maintenance})), long: 1},
		"game":        {test: sourceWide(probed, always(simulator.Fault{Kind: simulator.GameMaintenance})), long: 1},

		"429":       {test: sourceWide(braked, always(simulator.Fault{Kind: simulator.TooManyRequests}))},
		"429-after": {test: sourceWide(braked, always(simulator.Fault{Kind: simulator.TooManyRequests, RetryAfter: "4"}))},
		"429-date": {test: sourceWide(braked, func(now time.Time) simulator.Fault {
			return simulator.Fault{Kind: simulator.TooManyRequests, RetryAfter: now.Add(outageLength).UTC().Format(http.TimeFormat)}
		})},
		"429-ratelimit": {test: sourceWide(braked, refusedWith("RateLimit", `"minute";r=9;t=40, "second";r=0;t=4`))},
		"429-reset":     {test: sourceWide(braked, refusedWith("RateLimit-Reset", "4"))},
		"429-x-after":   {test: sourceWide(braked, refusedWith("X-RateLimit-Reset-After", "4.5"))},
		"429-x-epoch": {test: sourceWide(braked, func(now time.Time) simulator.Fault {
			at := strconv.FormatInt(now.Add(outageLength).Unix(), 10)
			return simulator.Fault{Kind: simulator.TooManyRequests, Headers: map[string]string{"X-RateLimit-Reset": at}}
		})},
		"429-x-requests": {test: sourceWide(braked, refusedWith("X-RateLimit-Reset-Requests", "4s"))},

		"day-refused": {test: theUpstreamsDayIsSpent},
		"day-own":     {edit: smallDay, test: ourOwnDayIsSpent},
		"renewed": {edit: func(config string) string {
			if err := os.WriteFile(secret, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			return strings.Replace(config, "secretEnv: NEXON_API_KEY", "secretFile: "+secret, 1)
		}, test: func(c *ill) { theKeyIsRenewed(c, secret) }},
		"absent":      {test: whoIsAbsentIsVisitedAThousandTimes},
		"not-ready":   {test: notReadyIsAskedAgain},
		"refused-one": {test: oneEntityIsRefused},
		"broken-one":  {test: oneEntityIsBroken},
		"poison":      {test: aLetterThatCannotBeWrittenHoldsItsRecord, long: 2},
	}
}

func TestEveryFailureHasItsEnd(t *testing.T) {
	all := failures(t)
	if onReal() {
		t.Parallel()
	} else { // one process for everything has enough with one spelling of a wait
		maps.DeleteFunc(all, func(name string, _ failure) bool { return strings.HasPrefix(name, "429-") && name != "429-after" })
	}
	edits := map[string]func(string) string{}
	for name, f := range all {
		edits[name] = f.edit
	}
	s := newSite(t, 2, 1, edits)
	// Many at once, for they wait most of their time; t.Parallel would count processors.
	var tests sync.WaitGroup
	room := make(chan struct{}, 8)
	names := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(names, func(a, b string) int { return -cmp.Compare(all[a].long, all[b].long) })
	for _, name := range names {
		room <- struct{}{}
		tests.Go(func() {
			t.Run(name, func(t *testing.T) { all[name].test(s.of(t, name)) })
			<-room
		})
	}
	tests.Wait()
}

// theUpstreamsDayIsSpent: a refusal until tomorrow holds every request, and makes
// neither a letter nor a row of each.
func theUpstreamsDayIsSpent(c *ill) {
	c.ask(characters("before", 10)...)
	c.untilFresh(patience, time.Now())
	mark := c.upstream.Stats().Arrivals
	one := 1
	c.ailing(simulator.Fault{Kind: simulator.TooManyRequests, RetryAfter: "36000", Count: &one})
	c.ask("the-one-more")
	within(c, patience, "the refusal", func() bool { return c.upstream.Stats().ByStatus[http.StatusTooManyRequests] == 1 })
	c.ask(characters("k", 100)...)
	c.trickle("t", 20, time.Now().Add(2*time.Second))
	if n := c.upstream.Stats().Arrivals - mark; n > 5 { // those in the air with the refused one
		c.Errorf("%d calls to an upstream that asked for ten hours", n)
	}
	if n := c.behind(); n < 100 || c.letters() != 0 {
		c.Errorf("%d records wait, %d letters", n, c.letters())
	}
	for _, key := range c.keys[10:] {
		if s := c.status(key); s.State != "" {
			c.Errorf("%+v", s)
		}
	}
	// The ten hours pass: what the limiter knows is forgotten, and it starts quiet.
	if err := c.redis.Del(c.Context(), "quota:{"+c.source+"}:lanes").Err(); err != nil {
		c.Fatal(err)
	}
	took := c.untilFresh(withBusy(stated), time.Now())
	c.Logf("all fresh %v after the brake", took.Round(10*time.Millisecond))
	c.aftermath(0)
}

const smallDayLimit = 40

// smallDay gives the source a day of few calls, in a time zone where it is noon: no
// midnight comes to the test's help.
func smallDay(config string) string {
	zone := fmt.Sprintf("Etc/GMT%+d", time.Now().UTC().Hour()-12) // their sign is the other way round
	old := "{name: day, limit: 20000000, window: day, timeZone: Asia/Seoul, highReserve: 25/s}"
	if !strings.Contains(config, old) {
		panic("the preset has another day policy")
	}
	return strings.Replace(config, old, fmt.Sprintf("{name: day, limit: %d, window: day, timeZone: %s}", smallDayLimit, zone), 1)
}

func ourOwnDayIsSpent(c *ill) {
	c.ask(characters("k", 100)...)
	within(c, patience, "the day's last call", func() bool { return c.upstream.Stats().Arrivals == smallDayLimit })
	c.trickle("t", 20, time.Now().Add(2*time.Second))
	if n := c.upstream.Stats().Arrivals; n != smallDayLimit {
		c.Errorf("%d calls on a day of %d", n, smallDayLimit)
	}
	if n := c.letters(); n != 0 {
		c.Errorf("%d letters", n)
	}
	code, _, stderr := command(c.T, []string{"FRESHET_ADDR=" + c.api}, "settings", "set", "--source", c.source, "day.limit=100000")
	if code != 0 {
		c.Fatal(stderr)
	}
	took := c.untilFresh(withBusy(stated), time.Now())
	c.Logf("all fresh %v after the day had calls again", took.Round(10*time.Millisecond))
	c.aftermath(0)
}

// theKeyIsRenewed: with the new key in the file calls go on at once, however far
// away the next probe is.
func theKeyIsRenewed(c *ill, file string) {
	renewed := "new"
	if err := c.upstream.Control(simulator.Control{APIKey: &renewed}); err != nil {
		c.Fatal(err)
	}
	c.ask(characters("k", 50)...)
	// The probe after five seconds has failed, and the next one is ten away.
	within(c, patience, "the first probe", func() bool {
		s := c.upstream.Stats()
		return s.Arrivals > 0 && s.LastArrival.Sub(s.FirstArrival) > 4*time.Second
	})
	if err := os.WriteFile(file, []byte(renewed), 0o600); err != nil {
		c.Fatal(err)
	}
	took := c.untilFresh(withBusy(stated), time.Now())
	c.Logf("all fresh %v after the file has the new key", took.Round(10*time.Millisecond))
	if timed() && took > 8*time.Second {
		c.Errorf("%v: it waited for a probe", took)
	}
	c.aftermath(0)
}

func whoIsAbsentIsVisitedAThousandTimes(c *ill) {
	keys := characters("absent-", 3)
	c.ask(keys...)
	c.untilFresh(patience, time.Now())
	var readers sync.WaitGroup
	for i := range 20 {
		readers.Go(func() {
			for range 150 {
				if a, err := c.read(keys[i%3]); err != nil || a.Freshness != "NOT_FOUND" || a.UpdateQueued {
					c.Errorf("%+v, %v", a, err)
					return
				}
			}
		})
	}
	readers.Wait()
	c.aftermath(0)
	if n := c.upstream.Stats().Arrivals; n != 3 {
		c.Errorf("%d calls for three absent entities that were visited a thousand times each", n)
	}
}

func notReadyIsAskedAgain(c *ill) {
	c.ailing(simulator.Fault{Kind: simulator.NotReady, Key: "^later"})
	later := characters("later", 5)
	c.ask(later...)
	for _, key := range later {
		within(c, patience, "a retry of "+key, func() bool { return c.status(key).State == store.Retrying })
		s := c.status(key)
		if wait := time.Until(s.Until); s.Rounds != 0 || s.Reason != string(schemas.NotReady) || wait > 450*time.Second || wait < 2*time.Minute {
			c.Errorf("%s: %+v, due in %v", key, s, wait)
		}
	}
	// The hold follows the row, so that it never promises a retry that is not written down.
	within(c, patience, "a reader to be told of the hold", func() bool {
		a, err := c.read(later[0])
		return err == nil && a.NotQueuedReason == "HELD_RETRYING"
	})
	// Once more: it is still not ready, which counts as nothing.
	first := c.status(later[0])
	c.due(first)
	within(c, patience, "a second look", func() bool { return c.status(later[0]).Number > first.Number })
	if s := c.status(later[0]); s.Rounds != 0 || s.State != store.Retrying {
		c.Errorf("after a second look: %+v", s)
	}
	c.ailing()
	for _, key := range later {
		c.due(c.status(key))
	}
	c.Logf("all fresh %v after they were due", c.untilFresh(withBusy(stated), time.Now()).Round(10*time.Millisecond))
	c.aftermath(0)
}

// letterOf checks that the index has one letter, and that it is the entity's.
func (c *ill) letterOf(key string, reason schemas.DeadLetterReason, attempts int) {
	c.Helper()
	all, err := c.store.Letters(c.Context(), store.LetterFilter{Source: c.source, Handled: store.OpenLetters}, store.Letter{}, 10)
	if err != nil || len(all) != 1 {
		c.Fatalf("%d letters, %v", len(all), err)
	}
	if l := all[0]; l.Entity != c.entity(key) || l.Reason != reason || l.Attempts != attempts {
		c.Errorf("%+v", l)
	}
	if s := c.status(key); s.State != store.Failed || s.Failures != 1 {
		c.Errorf("%+v", s)
	}
	for range 100 {
		a, err := c.read(key)
		if a.NotQueuedReason == "SLOW" {
			continue // a busy machine: the reader goes without an answer to that
		}
		if err != nil || a.NotQueuedReason != "HELD_FAILED" {
			c.Fatalf("a visitor is told %+v, %v", a, err)
		}
	}
}

// without drops a key from those that must be fresh in the end.
func (c *ill) without(key string) {
	c.keys = slices.DeleteFunc(c.keys, func(k string) bool { return k == key })
}

func oneEntityIsRefused(c *ill) {
	c.ailing(simulator.Fault{Kind: simulator.BadParameter, Key: "^bad$"})
	began := time.Now()
	c.ask("bad")
	c.without("bad")
	for i := 0; c.letters() < 1 && time.Since(began) < patience; i++ { // the others vouch for the upstream
		c.ask("k" + strconv.Itoa(i))
	}
	c.Logf("the letter was there after %v, with %d others", time.Since(began).Round(10*time.Millisecond), len(c.keys))
	c.untilFresh(patience, time.Now())
	c.aftermath(1)
	c.letterOf("bad", schemas.Upstream4xx, 2)
}

func oneEntityIsBroken(c *ill) {
	c.ailing(simulator.Fault{Kind: simulator.InternalError, Key: "^bad$"})
	c.ask("bad")
	c.without("bad")
	for round := 1; round <= 3; round++ {
		c.ask(characters(fmt.Sprintf("round%d-", round), 20)...)
		within(c, patience, fmt.Sprintf("round %d", round), func() bool { return c.status("bad").Rounds == round })
		if s := c.status("bad"); s.State != store.Retrying || c.letters() != 0 {
			c.Errorf("%+v, %d letters", s, c.letters())
		}
		c.due(c.status("bad"))
	}
	within(c, patience, "the letter", func() bool { return c.status("bad").State == store.Failed })
	c.untilFresh(patience, time.Now())
	c.aftermath(1)
	c.letterOf("bad", schemas.Upstream5xx, 3)
	if n := c.upstream.Stats().ByStatus[http.StatusInternalServerError]; n != 12 {
		c.Errorf("%d calls for the broken entity; four rounds of three are 12", n)
	}
}

// aLetterThatCannotBeWrittenHoldsItsRecord: twice, for a client that has never seen
// the topic, and for one that has written to another topic of the name.
func aLetterThatCannotBeWrittenHoldsItsRecord(c *ill) {
	topic := schemas.DeadLetterTopic(c.source)
	for i, poison := range []string{"\x00 no request", `{"schemaVersion":"99"}`} {
		if _, err := c.admin.DeleteTopic(c.Context(), topic); err != nil {
			c.Fatal(err)
		}
		within(c, patience, "the topic's end", func() bool {
			all, err := c.admin.ListTopics(c.Context(), topic)
			return err == nil && !all.Has(topic)
		})
		held := func() float64 { return c.metric("held_total", "write dead letters") }
		before := held()
		record := &kgo.Record{Topic: schemas.RequestTopic(c.source, schemas.High), Key: []byte("poison"), Value: []byte(poison)}
		if err := c.kafka.ProduceSync(c.Context(), record).FirstErr(); err != nil {
			c.Fatal(err)
		}
		within(c, patience, "a letter that is not written", func() bool { return held() > before })
		c.ask(characters(fmt.Sprintf("beside%d-", i), 20)...)
		c.untilFresh(patience, time.Now())
		if n := c.behind(); n < 1 {
			c.Error("the record was committed without its letter")
		}
		if _, err := c.admin.CreateTopic(c.Context(), 1, 1, nil, topic); err != nil {
			c.Fatal(err)
		}
		created := time.Now()
		within(c, 2*patience, "the letter", func() bool { return c.letters() == 1 })
		within(c, patience, "the commit of every offset", func() bool { return c.behind() == 0 })
		c.Logf("the letter was written and its record committed %v after the topic was there", time.Since(created).Round(10*time.Millisecond))
		if value := c.newest(topic); string(value) != poison {
			c.Errorf("the letter has %q", value)
		}
	}
}

// newest returns the value of the only record of a topic of one partition.
func (c *ill) newest(topic string) []byte {
	c.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		c.Fatal(err)
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(c.Context())
		if err := fetches.Err0(); err != nil {
			c.Fatal(err)
		}
		for _, r := range fetches.Records() {
			return r.Value
		}
	}
}

func (c *ill) seeds() []string { return c.kafka.OptValue(kgo.SeedBrokers).([]string) }
