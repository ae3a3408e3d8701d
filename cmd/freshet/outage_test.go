package main

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// demand is how many entities are asked for in a second (the scheduler's rate).
const demand = 350

// outageOf is how long the outage lasts: half a minute, or what `make seen-outage`
// says.
func outageOf(t *testing.T) time.Duration {
	text := os.Getenv("FRESHET_TEST_OUTAGE")
	if text == "" {
		return 30 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 10*time.Second {
		t.Fatalf("FRESHET_TEST_OUTAGE=%s: write a duration of at least 10s", text)
	}
	return d
}

// statedProbes returns after how long from the stop the probes go out, of a stop
// that lasts so long: after 5 s, and then after pauses that double up to a minute.
func statedProbes(length time.Duration) (all []time.Duration) {
	at, pause := 5*time.Second, 5*time.Second
	for at <= length {
		all = append(all, at)
		pause = min(2*pause, time.Minute)
		at += pause
	}
	return all
}

func TestATotalOutageLeavesNothingBehind(t *testing.T) {
	if onReal() { // one process for everything has enough with one test
		t.Parallel()
	}
	length := outageOf(t)
	s := newSite(t, 24, 2, map[string]func(string) string{"outage": nil})
	c := s.of(t, "outage")
	// As many entities as a part of the outage has visits, so that they come round
	// when their locks have ended: what is asked for again must cost nothing.
	round := characters("k", int(min(length/3, 40*time.Second).Seconds()*demand))
	c.ask(characters("before", 200)...)
	c.untilFresh(patience, time.Now())

	mark := c.upstream.Stats().Arrivals
	c.ailing(simulator.Fault{Kind: simulator.InternalError})
	began := time.Now()
	visits := c.visits(round, began.Add(length))
	c.keys = append(c.keys, round[:min(len(round), visits)]...)
	rows, letters := c.rows(), c.letters()
	c.ailing()
	ended := time.Now()

	// What is seen in the first two seconds showed the outage; later ones are probes.
	calls := c.failed(mark)
	known := 0
	for known < len(calls) && calls[known] < calls[0]+2*time.Second {
		known++
	}
	stop, probes := calls[max(0, known-1)], calls[known:]
	want := statedProbes(length)
	t.Logf("%v of outage, %d visits to %d entities: %d calls showed it, %d probes (stated: %d at most), %d letters, %d rows of failures",
		ended.Sub(began).Round(time.Millisecond), visits, len(c.keys), known, len(probes), len(want), letters, len(rows))
	if len(probes) > len(want) {
		t.Errorf("%d probes, stated are %d", len(probes), len(want))
	}
	for i, at := range probes {
		after := at - stop
		t.Logf("probe %d came %v after the stop", i+1, after.Round(time.Millisecond))
		if i < len(want) && after < want[i]-500*time.Millisecond {
			t.Errorf("probe %d came %v after the stop, before its time, %v", i+1, after, want[i])
		}
	}
	if letters > 0 || len(rows) > 0 {
		t.Errorf("at the end of the outage: %d letters, %d rows of failures: %v", letters, len(rows), rows)
	}

	// The next probe at the latest, then all of them at half the rate for the first
	// ten seconds, and at 400 a second (of 450) after them.
	limit := time.Minute + 10*time.Second + time.Duration(len(c.keys))*time.Second/400 + 5*time.Second
	took := c.untilFresh(limit, ended)
	after := c.upstream.Since(mark+len(calls), time.Second)
	t.Logf("all %d entities fresh %v after the end, with %d calls, at most %d in a second", len(c.keys), took.Round(10*time.Millisecond), after.Arrivals, after.MaxInWindow)
	// Visits of what is fresh by now are still to be read and passed over.
	within(t, patience+time.Duration(visits)*time.Second/1000, "the commit of every offset", func() bool { return c.behind() == 0 })
	if rows, n := c.rows(), c.letters(); n > 0 || len(rows) > 0 {
		t.Errorf("afterwards: %d letters, %d rows of failures: %v", n, len(rows), rows)
	}
	if s := c.upstream.Stats(); s.Refused > 0 || s.MaxInSlidingSecond > 500 {
		t.Errorf("the contract is broken: %d in a second, %d refused", s.MaxInSlidingSecond, s.Refused)
	}
	if extra := after.Arrivals - len(c.keys) + 200; extra > len(c.keys)/20 {
		t.Errorf("%d calls more than there are entities", extra)
	}
}

// visits reads the keys round and round, at the rate of the demand, and returns how
// many visits that were.
func (c *ill) visits(keys []string, until time.Time) (n int) {
	c.Helper()
	began := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	next := make(chan string, len(keys))
	var readers sync.WaitGroup
	for range 32 {
		readers.Go(func() {
			for key := range next {
				if err := c.promised(key); err != nil {
					c.Error(err)
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

// rows returns the first of the keys of which a failure is written down, and why.
func (c *ill) rows() (some []string) {
	c.Helper()
	const most = 500
	for from := 0; from < len(c.keys) && len(some) < 10; from += most {
		var of []schemas.Entity
		for _, key := range c.keys[from:min(len(c.keys), from+most)] {
			of = append(of, c.entity(key))
		}
		all, err := c.store.Statuses(c.Context(), of)
		if err != nil {
			c.Fatal(err)
		}
		for _, s := range all {
			if s.State != "" {
				some = append(some, s.Entity.Key+" "+string(s.State)+" "+s.Error)
			}
		}
	}
	return some
}

// failed returns when those of the upstream's calls came that a fault hit, after the
// first so many, since its start.
func (c *ill) failed(mark int) (at []time.Duration) {
	c.Helper()
	lines := strings.Split(strings.TrimSpace(get(c.T, c.upstream, "/_arrivals")), "\n")
	for _, line := range lines[mark:] {
		var a struct {
			At    int64          `json:"at"`
			Fault simulator.Kind `json:"fault"`
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			c.Fatal(err)
		}
		if a.Fault != "" {
			at = append(at, time.Duration(a.At)*time.Microsecond)
		}
	}
	return at
}
