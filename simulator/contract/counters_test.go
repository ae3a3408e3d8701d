package contract

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var kinds = []*policy{
	{kind: sliding, limit: 20, window: time.Minute},
	{kind: fixed, limit: 20, window: time.Minute},
	{kind: aligned, limit: 20, window: time.Minute, offset: -9*time.Hour - 7*time.Second},
	{kind: bucket, limit: 20, window: time.Minute},
	{kind: minInterval, limit: 1, window: time.Minute},
}

func TestCounter_AvailableAtAndResetAreExact(t *testing.T) {
	for _, p := range kinds {
		t.Run(fmt.Sprint(p.kind), func(t *testing.T) {
			chance := rand.New(rand.NewPCG(3, uint64(p.kind)))
			build := func() (counter, time.Time) {
				c, at := p.counter(), time.Unix(1_700_000_000, 0)
				for range 60 {
					at = at.Add(time.Duration(chance.Int64N(int64(9 * time.Second))))
					if n := min(p.limit, float64(1+chance.IntN(3))); c.remaining(at) >= n {
						c.take(at, n)
					}
				}
				return c, at
			}
			for range 300 {
				c, at := build()
				n := min(p.limit, float64(1+chance.IntN(20)))
				if c.remaining(at) < n {
					opens := c.availableAt(at, n)
					// One nanosecond before the time from availableAt, the n units must not be
					// available. A bucket is exempt, because its units have rounding errors.
					if before := c.remaining(opens.Add(-1)); before >= n && p.kind != bucket || opens.Before(at) {
						t.Fatalf("%v units: available in %v, but got %v one nanosecond earlier", n, opens.Sub(at), before)
					}
					if got := c.remaining(opens); got < n-tolerance {
						t.Fatalf("%v units: available in %v, but got %v then", n, opens.Sub(at), got)
					}
				}
				c, at = build()
				reset := c.reset(at)
				if got := c.remaining(reset); got < p.limit-tolerance {
					t.Fatalf("reset in %v: got %v units then", reset.Sub(at), got)
				}
				if p.kind == aligned && (reset.Add(-p.offset).UnixNano()%int64(p.window) != 0 || reset.Sub(at) > p.window) {
					t.Fatalf("at %v: got window end %v", at, reset)
				}
				if c.take(reset, 1); c.remaining(reset) > p.limit-1+tolerance {
					t.Fatalf("after taking a unit at the reset: got %v remaining of %v", c.remaining(reset), p.limit)
				}
			}
		})
	}
}

func TestLog_MaxInWindowByKind(t *testing.T) {
	at := func(seconds ...float64) (log []logEntry) {
		for _, s := range seconds {
			log = append(log, logEntry{at: time.Unix(1_700_000_000, 0).Add(9 * time.Hour).Truncate(time.Minute).Add(time.Duration(s * float64(time.Second))), units: 1})
		}
		return log
	}
	for _, x := range []struct {
		kind kind
		log  []logEntry
		want float64
	}{
		{sliding, at(0, 30, 60), 3},
		{sliding, at(0, 30, 60.000000001), 2},
		{sliding, nil, 0},
		{fixed, at(0, 30, 60), 2},
		{fixed, at(0, 30, 59.9, 61, 62), 3},
		{aligned, at(50, 59, 60, 70), 2},
		{aligned, at(0, 59.9, 60), 2},
		{bucket, at(0, 0, 60, 60, 60), 3},
		{bucket, at(0, 0, 0, 3, 3), 4}, // want 5 - 1 = 4 units: five are taken, and the bucket restores one in 3 s
		{concurrency, append(at(0, 1), logEntry{at: at(2)[0].at, units: -1}, at(3)[0], at(4)[0]), 3},
		{minInterval, at(0, 59.9), 2},
		{minInterval, at(0, 60), 1},
	} {
		a := account{accountKey: accountKey{policy: &policy{kind: x.kind, limit: 20, window: time.Minute, offset: -9 * time.Hour}}}
		if got := a.maxInWindow(x.log); got != x.want {
			t.Errorf("kind %d: got %v for %v, want %v", x.kind, got, x.log, x.want)
		}
	}
}
