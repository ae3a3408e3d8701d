package lua_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// zoned is a date in a time zone.
type zoned struct {
	name       string
	year       int
	month      time.Month
	date, long int // day of the month; length of that day in hours
}

// zonedDays contains days of 23, 24 and 25 hours.
var zonedDays = []zoned{
	{"Asia/Seoul", 2027, time.January, 16, 24},
	{"America/New_York", 2027, time.March, 14, 23},
	{"America/New_York", 2027, time.November, 7, 25},
}

// eachZone runs the test for each of zonedDays, with the clock 12 hours before the day begins.
func eachZone(t *testing.T, test func(b bucket, c *clock, midnight func(day int) time.Time)) {
	t.Helper()
	for _, z := range zonedDays {
		t.Run(z.name+" "+z.month.String(), func(t *testing.T) {
			zone, err := time.LoadLocation(z.name)
			if err != nil {
				t.Fatal(err)
			}
			midnight := func(day int) time.Time { return time.Date(z.year, z.month, z.date+day, 0, 0, 0, 0, zone) }
			if hours := midnight(1).Sub(midnight(0)).Hours(); int(hours) != z.long {
				t.Fatalf("the day has %v hours, the test wants %d", hours, z.long)
			}
			simulated(t, func(b bucket, c *clock) {
				b.onDay(200, 0)
				b.zone = zone
				c.set(midnight(0).Add(-12 * time.Hour))
				test(b, c, midnight)
			})
		})
	}
}

// shownEnd returns the end of the day whose calls the state counts.
func (b bucket) shownEnd() time.Time {
	b.t.Helper()
	shown := b.look()
	return time.UnixMicro(shown[len(shown)-1])
}

func TestMidnight_DaysOfAnyLengthKeepTheLimit(t *testing.T) {
	t.Parallel()
	eachZone(t, func(b bucket, c *clock, midnight func(int) time.Time) {
		for seed := range uint64(2) {
			rng := rand.New(rand.NewPCG(seed, 41))
			b.forget()
			c.set(midnight(0).Add(-12 * time.Hour))
			b.awake()
			var all []int64
			for next := 0; next < 3; {
				switch left := midnight(next).Sub(c.now); {
				case left > time.Minute: // more than a minute before midnight: a few calls an hour
					c.advance(min(left-time.Minute, time.Duration(rng.Int64N(int64(2*time.Hour)))+1).Microseconds())
					all = append(all, b.acquire(rng.IntN(8), rng.IntN(8)).all()...)
				case left < -time.Minute:
					next++
				default: // within a minute of midnight: as many calls as possible
					c.advance(rng.Int64N(4 * second))
					all = append(all, b.acquire(rng.IntN(60), rng.IntN(60)).all()...)
				}
			}
			slices.Sort(all)
			for day := range 3 {
				from, to := midnight(day-1).UnixMicro()-margin, midnight(day).UnixMicro()+margin
				if got := within(all, from, to); got != 200 {
					t.Errorf("seed %d, day %d: %d calls, with those around midnight; want the limit of 200", seed, day, got)
				}
			}
		}
	})
}

func TestMidnight_IsThatOfTheTimeZone(t *testing.T) {
	t.Parallel()
	eachZone(t, func(b bucket, c *clock, midnight func(int) time.Time) {
		fresh := b
		fresh.key += "2"
		b.awake()
		for c.now.Before(midnight(3)) {
			want := endOfDay(c.now, b.zone)
			b.acquire(1, 1)
			fresh.forget()
			fresh.acquire(0, 0)
			for _, state := range []bucket{b, fresh} {
				if got := state.shownEnd(); !got.Equal(want) {
					t.Fatalf("at %v the day ends at %v, want %v", c.now.In(b.zone), got.In(b.zone), want)
				}
			}
			c.advance(3607 * second)
		}
	})
}

func TestMidnight_ForgetsPastDaysAfterIdleness(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.onDay(200, 0)
		for _, idle := range []time.Duration{25 * time.Hour, 60 * time.Hour, 200 * time.Hour} {
			b.forget()
			b.awake()
			b.setNumber("used", 200)
			if g := b.acquire(1, 1); len(g.all()) > 0 {
				t.Fatalf("got grant %+v of a day that is used up", g)
			}
			c.set(time.Date(2027, 1, c.now.Day(), 23, 59, 55, 0, time.UTC))
			b.setNumber("used", 100)
			b.acquire(5, 0) // five calls at 5 s before midnight, which count in both days
			c.advance(idle.Microseconds())
			if g := b.acquire(3, 0); g.used != 3 || len(g.high) != 3 || !b.shownEnd().Equal(endOfDay(c.now, b.zone)) {
				t.Errorf("%v later: %+v", idle, g)
			}
		}
	})
}

func TestMidnight_IgnoresTheCallersClock(t *testing.T) {
	t.Parallel()
	eachZone(t, func(b bucket, c *clock, midnight func(int) time.Time) {
		right := b.clock
		for _, around := range []time.Time{midnight(0), midnight(0).Add(12 * time.Hour), midnight(1)} {
			for at := -11 * time.Minute; at < 11*time.Minute; at += 97 * time.Second {
				for _, off := range []time.Duration{-10 * time.Minute, -10 * time.Second, 10 * time.Second, 10 * time.Minute} {
					c.set(around.Add(at))
					b.clock = func() time.Time { return right().Add(off) }
					b.forget()
					b.awake()
					if got, want := b.shownEnd(), endOfDay(c.now, b.zone); !got.Equal(want) {
						t.Fatalf("at %v, with a clock %v off, the day ends at %v, want %v", c.now.In(b.zone), off, got, want)
					}
				}
			}
		}
		// Callers with different clocks count in the same day.
		b.clock = right
		c.set(midnight(0).Add(-11 * time.Minute))
		b.forget()
		b.awake()
		rng := rand.New(rand.NewPCG(1, 42))
		for c.now.Before(midnight(0).Add(11 * time.Minute)) {
			c.advance(rng.Int64N(10 * second))
			b.clock = func() time.Time { return right().Add(time.Duration(rng.Int64N(1200)-600) * time.Second) }
			b.acquire(1, 1)
			b.clock = right
			if got, want := b.shownEnd(), endOfDay(c.now, b.zone); !got.Equal(want) {
				t.Fatalf("at %v the day ends at %v, want %v", c.now.In(b.zone), got, want)
			}
		}
	})
}

func TestMidnight_RejectsClocksHalfADayApart(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.onDay(200, 0)
		right := b.clock
		for hour := 0; hour < 24; hour += 3 {
			c.set(time.Date(2027, 1, 16, hour, 30, 0, 0, time.UTC))
			for off := -60 * time.Hour; off <= 60*time.Hour; off += 7 * time.Hour / 2 {
				b.forget()
				b.clock = func() time.Time { return right().Add(off) }
				_, err := b.run(1, 1, "used 0 0 0 0")
				switch {
				case err != nil && !strings.Contains(err.Error(), "more than half a day apart"):
					t.Fatal(err)
				case err != nil && off.Abs() <= 12*time.Hour:
					t.Fatalf("at %v, with a clock %v off: %v", c.now, off, err)
				case err == nil && off.Abs() > 36*time.Hour:
					t.Fatalf("at %v a clock %v off is no error", c.now, off)
				case err == nil:
					b.clock = right
					if got, want := b.shownEnd(), endOfDay(c.now, b.zone); !got.Equal(want) {
						t.Fatalf("at %v, with a clock %v off, the day ends at %v, want %v", c.now, off, got, want)
					}
				}
			}
		}
	})
}
