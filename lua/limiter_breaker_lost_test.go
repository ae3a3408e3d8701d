package lua_test

// These tests check the circuit breaker in two situations: the limiter's state in Redis was lost,
// or processes of an older release write to the state. The older release has no circuit breaker
// (its script is before_breaker_*.lua in testdata).

import (
	"crypto/sha1"
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

//go:embed testdata/before_breaker_acquire.lua
var acquireWithoutBreaker string

//go:embed testdata/before_breaker_long.lua
var loadWithoutBreaker string

// older runs the script of the older release: it sends the event `happened` and requests slots for
// both lanes.
func (b bucket) older(nHigh, nLow int, happened string) []int64 {
	b.t.Helper()
	quota := b.quota()
	args := []any{nHigh, nLow, quota, fmt.Sprintf("%x", sha1.Sum([]byte(quota)))[:26], b.midnights()}
	if happened != "" {
		args = append(args, "", happened)
	}
	reply, err := b.rdb.Eval(b.t.Context(), acquireWithoutBreaker+loadWithoutBreaker, []string{b.key}, args...).Int64Slice()
	if err != nil {
		b.t.Fatal(err)
	}
	return reply
}

func TestBreaker_SurvivesAnOlderRelease(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.more = windowLog(second, 50, 40)
		b.awake()
		if reply := b.older(1, 1, ""); reply[0]+reply[1] != 2 {
			t.Fatalf("the older release got %v", reply)
		}
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, b.look()[0]))
		before := b.breaker()
		for _, happened := range []string{"", forceFullPath} {
			// The older release obeys the pause of the open breaker, because its script reads the
			// breaker's pause as a backoff.
			if reply := b.older(5, 5, happened); reply[0]+reply[1] != 0 || len(reply) != 8 {
				t.Errorf("in a pause the older release got %v", reply)
			}
		}
		if s := b.breaker(); s == nil || *s != *before {
			t.Errorf("got breaker %+v, want %+v", s, before)
		}
		b.shiftBreaker(-6 * second)
		before = b.breaker()
		if reply := b.older(1, 1, ""); reply[0]+reply[1] != 2 {
			t.Errorf("when a probe is due the older release got %v; want 2, because it has no breaker", reply)
		}
		if s := b.breaker(); s == nil || *s != *before {
			t.Errorf("got breaker %+v, want %+v", s, before)
		}
		g := b.acquire(5, 5)
		if len(g.all()) != 1 {
			t.Fatalf("the probe: %+v", g)
		}
		if reply := b.older(5, 5, ""); reply[0]+reply[1] != 0 {
			t.Errorf("in the next pause the older release got %v", reply)
		}
		b.acquireAfter(0, 0, closeEvent(g.all()[0]))
		if reply := b.older(1, 1, ""); reply[0]+reply[1] == 0 {
			t.Errorf("after its end the older release got %v", reply)
		}
		if g := b.acquire(1, 1); len(g.all()) == 0 || b.breaker() != nil {
			t.Errorf("after its end: %+v", g)
		}
	})
}

func TestBreaker_OlderReleasesBackoffDelaysProbe(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, c.us()))
		began := c.us()
		b.older(0, 0, backoffEvent(2*second, second, c.us()))
		if s := b.breaker(); s == nil || s.next != began+5*second {
			t.Errorf("a short backoff: %+v", s)
		}
		b.older(0, 0, backoffEvent(9*second, second, c.us()))
		c.advance(9 * second)
		if g := b.acquire(5, 0); len(g.high) != 1 || b.breaker().next != c.us()+10*second {
			t.Errorf("at its end: %+v", g)
		}
	})
}

func TestBreaker_ClosesIfAnOlderReleaseLostState(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(300*second, 300*second, c.us()))
		c.advance(-3600 * second) // the clock is set back by an hour, so the breaker's times are far in the future
		b.older(1, 1, "")
		b.acquire(1, 1)
		if s := b.breaker(); s != nil {
			t.Errorf("the breaker stays open: %+v", s)
		}
		c.advance(quiet + 300*second)
		if g := b.acquire(1, 1); len(g.all()) != 2 {
			t.Errorf("%+v", g)
		}
	})
}

func TestBreaker_ClosesWithLostState(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(b bucket){
		"emptied": bucket.forget,
		"garbled": func(b bucket) { b.setState("garbled") },
		"letters in the stop": func(b bucket) {
			s := b.state()
			b.setState(s[:len(s)-20] + "x" + s[len(s)-19:])
		},
		"a short stop": func(b bucket) {
			s := b.state()
			b.setState(s[:len(s)-20] + "\n")
		},
	} {
		simulated(t, func(b bucket, c *clock) {
			b.awake()
			b.acquireAfter(0, 0, openEvent(60*second, 60*second, c.us()))
			lose(b)
			b.acquire(1, 1)
			c.advance(quiet + second)
			if g := b.acquire(1, 1); b.breaker() != nil || (len(g.all()) == 0 && name != "letters in the stop") {
				t.Errorf("%s: %+v, %+v", name, g, b.breaker())
			}
		})
	}
}

func TestBreaker_SurvivesFailoverAndClockStep(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(b bucket, c *clock){
		"a failover": func(b bucket, _ *clock) { b.failOver() },
		"a step back": func(_ bucket, c *clock) {
			c.advance(-3600 * second)
		},
	} {
		simulated(t, func(b bucket, c *clock) {
			b.awake()
			b.acquireAfter(0, 0, openEvent(5*second, 60*second, c.us()))
			c.advance(second)
			sent := c.us()
			b.acquire(1, 1)
			lose(b, c)
			b.acquire(1, 1)
			s, now := b.breaker(), c.us()
			if s == nil || s.next != now+4*second || s.began != now {
				t.Fatalf("%s: %+v, the next probe was due in 4 s", name, s)
			}
			b.acquireAfter(0, 0, closeEvent(min(sent, now))) // report the success of a call that was sent before the loss of state
			if b.breaker() == nil {
				t.Errorf("%s: a success of before ended it", name)
			}
			if got := acquireEvery(b, c, 30*second, 5, 5); len(got) != 2 || got[0] != now+4*second || got[1] != now+14*second {
				t.Errorf("%s: probes at %v from %d", name, got, now)
			}
		})
	}
}

func TestBreaker_KeepsLinesOfALaterFormat(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.setState(b.state() + "fields of a later release")
		b.acquireAfter(0, 0, openEvent(second, second, c.us()))
		b.acquire(1, 1)
		if s := b.state(); !strings.HasSuffix(s, "\nfields of a later release") || strings.Count(s, "\nP") != 1 || b.breaker() == nil {
			t.Errorf("the state became %q", s)
		}
		c.advance(second)
		b.acquireAfter(0, 0, closeEvent(b.acquire(1, 0).high[0]))
		if s := b.state(); !strings.HasSuffix(s, "\nfields of a later release") || strings.Count(s, "\nP") != 1 || b.breaker() != nil {
			t.Errorf("closed, the state became %q", s)
		}
	})
}
