package lua_test

// These tests check the circuit breaker after the limiter's state in Redis was lost.

import (
	"strings"
	"testing"
)

func TestBreaker_ClosesWithLostState(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(b bucket){
		"emptied": bucket.forget,
		"garbled": func(b bucket) { b.setState("garbled") },
		"letters in the stop": func(b bucket) {
			b.setLine(breakerLine, "x"+b.line(breakerLine)[1:])
		},
		"a short stop": func(b bucket) {
			b.setLine(breakerLine, b.line(breakerLine)[16:])
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
		if s := b.state(); !strings.HasSuffix(s, "\nfields of a later release") || b.breaker() == nil {
			t.Errorf("the state became %q", s)
		}
		c.advance(second)
		b.acquireAfter(0, 0, closeEvent(b.acquire(1, 0).high[0]))
		if s := b.state(); !strings.HasSuffix(s, "\nfields of a later release") || b.breaker() != nil {
			t.Errorf("closed, the state became %q", s)
		}
	})
}
