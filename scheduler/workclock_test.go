package scheduler

import (
	"math/rand/v2"
	"testing"
	"time"
)

// zones are time zones with different changes to summer time: by an hour, by half an hour, at
// midnight, or none.
var zones = []string{"Asia/Seoul", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Asuncion", "Africa/Cairo", "UTC", "Pacific/Apia"}

func newTestCourse(t *testing.T, zone string, notBefore Clock, s BudgetConfig) *workClock {
	t.Helper()
	c := DefaultConfig()
	c.TimeZone, c.NotBefore = zone, notBefore
	course, err := newWorkClock(c, s)
	if err != nil {
		t.Fatal(err)
	}
	return course
}

func TestWorkClock_IsMonotonicAndInvertible(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, zone := range zones {
		for _, notBefore := range []Clock{0, 30, 120, 150, 720} {
			s := cappedBudget()
			s.TimeZone = zone
			c := newTestCourse(t, zone, notBefore, s)
			for range 100 {
				at := time.Unix(rng.Int64N(40*365*86400), rng.Int64N(1e9))
				on := at.Add(time.Duration(rng.Int64N(int64(50 * time.Hour))))
				w := c.workAt(at)
				if v := c.workAt(on); v < w {
					t.Fatalf("%s, notBefore %s: work at %v: got %v, and %v at %v", zone, clockText(notBefore), at, w, v, on)
				}
				back := c.timeAt(w)
				if _, _, waits := c.notReady(back); waits {
					t.Fatalf("%s, notBefore %s: got %v, at which no work passes", zone, clockText(notBefore), back.In(c.zone))
				}
				if _, _, waits := c.notReady(at); !waits && back.Sub(at).Abs() > time.Millisecond {
					t.Fatalf("%s, notBefore %s: round trip of %v: got %v", zone, clockText(notBefore), at.In(c.zone), back.In(c.zone))
				}
			}
		}
	}
}

func TestWorkClock_SkippedNotBeforeTime(t *testing.T) {
	for _, day := range []struct{ zone, at, ready string }{
		{"Asia/Seoul", "2026-03-29T00:30:00+09:00", "2026-03-29T02:30:00+09:00"},
		{"Europe/Berlin", "2026-03-29T00:30:00+01:00", "2026-03-29T03:00:00+02:00"}, // this day has no 02:30, so the content is ready at 03:00
		{"Europe/Berlin", "2026-10-25T00:30:00+02:00", "2026-10-25T02:30:00+02:00"}, // 02:30 occurs twice on this day, and the content is ready at the first
	} {
		c := newTestCourse(t, day.zone, 150, cappedBudget())
		at, _ := time.Parse(time.RFC3339, day.at)
		ready, _ := time.Parse(time.RFC3339, day.ready)
		if _, to, waits := c.notReady(at); !waits || !to.Equal(ready) {
			t.Errorf("%s, %s: not ready: got %v until %v", day.zone, day.at, waits, to.In(c.zone))
		}
		if _, _, waits := c.notReady(ready); waits {
			t.Errorf("%s: at %s: got not ready, want ready", day.zone, day.ready)
		}
		if _, _, waits := c.notReady(ready.Add(90 * time.Minute)); waits {
			t.Errorf("%s: got not ready when the clock repeats the time", day.zone)
		}
	}
}

func TestCourse_FollowsRateCaps(t *testing.T) {
	s := cappedBudget()
	s.TimeZone = "Asia/Seoul"
	c := newTestCourse(t, "Asia/Seoul", 120, s)
	midnight := time.Date(2026, 5, 5, 0, 0, 0, 0, c.zone)
	hour := func(h int) time.Duration {
		return c.workAt(midnight.Add(time.Duration(h+1)*time.Hour)) - c.workAt(midnight.Add(time.Duration(h)*time.Hour))
	}
	for h := range 24 {
		want := wholeDay * 250 / (17*250 + 5*150)
		if h < 2 {
			want = 0
		} else if h >= 19 {
			want = want * 150 / 250
		}
		if got := hour(h); (got - want).Abs() > time.Millisecond {
			t.Errorf("work of the hour from %d: got %v, want %v", h, got, want)
		}
	}
}
