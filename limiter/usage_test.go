package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
)

// usageDouble implements Usage in memory.
type usageDouble struct {
	mu    sync.Mutex
	kept  Count
	err   error
	reads int
	wrote []Count
	at    []time.Time
}

func (u *usageDouble) Used(_ context.Context, source, policy string) (Count, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reads++
	if source != "nexon" || policy != "day" {
		return Count{}, fmt.Errorf("the count of %s, %s", source, policy)
	}
	return u.kept, u.err
}

func (u *usageDouble) SetUsed(_ context.Context, source, policy string, c Count) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if source != "nexon" || policy != "day" {
		return fmt.Errorf("the count of %s, %s", source, policy)
	}
	if u.err == nil {
		u.kept = c
		u.wrote, u.at = append(u.wrote, c), append(u.at, time.Now())
	}
	return u.err
}

func (u *usageDouble) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = err
}

// counting returns a function that answers calls like a Redis that has lost the count of the day: it
// grants no slots until it has received the saved count.
func counting(r *redisDouble) func(int, demand) (grant, error) {
	used, counted := int64(0), false
	return func(_ int, d demand) (grant, error) {
		for _, e := range d.events {
			if e.kind == eventDayCount {
				used, counted = e.numbers[1], true
			}
		}
		g := grant{now: r.now(), used: used}
		if !counted {
			if d.high > 0 {
				g.backHigh, g.refusalHigh = 50*ms, refusedByDayCount
			}
			if d.low > 0 {
				g.backLow, g.refusalLow = 50*ms, refusedByDayCount
			}
			return g, nil
		}
		g.high, g.low = make([]time.Duration, d.high), make([]time.Duration, d.low)
		used += int64(d.high + d.low)
		g.used = used
		return g, nil
	}
}

func TestDayCount_IsRestoredAfterALoss(t *testing.T) {
	r := &redisDouble{}
	r.answer = counting(r)
	end := time.UnixMicro(r0()).Add(5 * time.Hour)
	at := time.UnixMicro(r0()).Add(-time.Minute)
	u := &usageDouble{kept: Count{DayEnd: end, Calls: 12_345, At: at}, err: errors.New("the database is away")}
	simulatedWith(t, r, withDay(), Deps{Usage: u}, func(t *testing.T, l *Limiter) {
		got := acquireLater(t, l, schemas.Low)
		elapse(10 * time.Second)
		if len(got) > 0 || u.reads == 0 || strings.Contains(r.sentEvents(), "used") {
			t.Errorf("got a permit or a count without Usage; %d reads, events %q", u.reads, r.sentEvents())
		}
		u.fail(nil)
		<-got
		// Calls since the saved count are estimated at the maximum rate of the windows.
		if want := fmt.Sprintf("used %d 12345 %d 498 497;", end.UnixMicro(), at.UnixMicro()); strings.Count(r.sentEvents(), want) != 1 {
			t.Errorf("got events %q, want %q once", r.sentEvents(), want)
		}
		elapse(10 * time.Second)
		if u.kept.Calls != 12_346 {
			t.Errorf("got a saved count of %d", u.kept.Calls)
		}
	})
}

func TestDayCount_BeginsAtZeroWithoutUsage(t *testing.T) {
	for _, usage := range []Usage{nil, &usageDouble{}} {
		r := &redisDouble{}
		r.answer = counting(r)
		simulatedWith(t, r, withDay(), Deps{Usage: usage}, func(t *testing.T, l *Limiter) {
			mustAcquire(t, l, schemas.High)
			if sentEvents := r.sentEvents(); !strings.Contains(sentEvents, "used 0 0 0 0 0;") {
				t.Errorf("got events %q", sentEvents)
			}
		})
	}
}

func TestDayCount_IsSavedEveryFiveSeconds(t *testing.T) {
	r := &redisDouble{}
	r.answer = counting(r)
	u := &usageDouble{}
	var last time.Time
	simulatedWith(t, r, withDay(), Deps{Usage: u}, func(t *testing.T, l *Limiter) {
		for range 30 {
			mustAcquire(t, l, schemas.Low)
			elapse(time.Second)
		}
		if n := len(u.wrote); n < 5 || n > 6 {
			t.Errorf("saved %d times in 30 s", n)
		}
		for i := 1; i < len(u.at); i++ {
			if gap := u.at[i].Sub(u.at[i-1]); gap < 5*time.Second || gap > 6*time.Second {
				t.Errorf("saved %v after the last save", gap)
			}
		}
		elapse(10 * time.Second)
		idle := len(u.wrote)
		elapse(time.Minute)
		if len(u.wrote) != idle {
			t.Errorf("saved %d times without calls", len(u.wrote)-idle)
		}
		mustAcquire(t, l, schemas.Low)
		last = time.UnixMicro(r.now())
	})
	c := u.wrote[len(u.wrote)-1]
	if c.Calls != 31 || !c.At.Equal(last) || !c.DayEnd.After(c.At) || c.DayEnd.Sub(c.At) > 24*time.Hour || c.DayEnd.UTC().Hour() != 15 {
		t.Errorf("got %+v saved at the end", c)
	}
}

func TestDayCount_UnsavedStopsPermits(t *testing.T) {
	r := &redisDouble{}
	r.answer = counting(r)
	u := &usageDouble{}
	var log bytes.Buffer
	simulatedWith(t, r, withDay(), Deps{Usage: u, Log: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, l *Limiter) {
		mustAcquire(t, l, schemas.Low)
		elapse(10 * time.Second)
		u.fail(errors.New("the disk is full"))
		began := time.Now()
		got := acquireLater(t, l, schemas.Low)
		synctest.Wait()
		for ; time.Since(began) < 5*time.Minute; elapse(time.Second) {
			select {
			case <-got:
				if since := time.Since(began); since > maxDayCountAge+10*time.Second {
					t.Fatalf("got a permit %v after the last save", since)
				}
				got = acquireLater(t, l, schemas.Low)
				synctest.Wait()
			default:
				if since := time.Since(began); since < maxDayCountAge {
					t.Fatalf("got no permit for %v", since)
				}
			}
		}
		asked := len(r.demands)
		elapse(time.Minute)
		if len(r.demands) != asked || len(got) > 0 || strings.Count(log.String(), "not saved for too long; no permits are granted") != 1 {
			t.Errorf("%d more calls to Redis; %s", len(r.demands)-asked, log.String())
		}
		u.fail(nil)
		elapse(2 * time.Second)
		if len(got) != 1 {
			t.Error("got no permit after the count could be saved again")
		}
	})
}
