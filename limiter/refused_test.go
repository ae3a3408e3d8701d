package limiter

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
)

func TestAcquire_RetriesRejectedDemandOnTime(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if n == 0 {
			return grant{high: make([]time.Duration, d.high), low: []time.Duration{0}, backLow: 70 * ms}, nil
		}
		return grantAll(n, d)
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { mustAcquire(t, l, schemas.Low) })
		}
		synctest.Wait()
		// A new LOW caller waits until the retry time that Redis returned, like the rejected LOW
		// callers. A HIGH caller calls Redis at once.
		wg.Go(func() { mustAcquire(t, l, schemas.Low) })
		sleep(10 * ms)
		mustAcquire(t, l, schemas.High)
		wg.Wait()
		last := len(r.demands) - 1
		if r.demands[last].low < 4 || r.at[last] != 70*ms || !reflect.DeepEqual(r.demands[last-1], demand{high: 1}) || r.at[last-1] != 10*ms {
			t.Errorf("demands %+v at %v", r.demands, r.at)
		}
	})
}

func TestAcquire_WithoutRedisCallsOnceASecond(t *testing.T) {
	down := errors.New("connection refused")
	r := &redisDouble{}
	r.answer = func(n int, d demand) (grant, error) {
		if time.Since(r.start) < 10*time.Second {
			return grant{}, down
		}
		return grantAll(n, d)
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				p := mustAcquire(t, l, []schemas.Lane{schemas.High, schemas.Low}[i%2])
				if at := time.Since(r.start); at < 10*time.Second || at > 12*time.Second {
					t.Errorf("got a permit at %v, want it after Redis returned at 10 s", at)
				}
				if !p.Spend() {
					t.Error("Spend: got false, want true")
				}
			})
		}
		wg.Wait()
		if n := len(r.demands); n > 13 {
			t.Errorf("got %d calls to a dead Redis in 10 s", n)
		}
	})
}

func TestBackOff_ReleasesSlotsAndTellsRedis(t *testing.T) {
	r := &redisDouble{}
	var backedOff time.Time
	r.answer = func(n int, d demand) (grant, error) {
		if len(d.events) > 0 && d.events[0].kind == eventBackoff {
			backedOff = time.Now().Add(micros(d.events[0].numbers[0]))
		}
		if wait := time.Until(backedOff); wait > horizon {
			return grant{backLow: wait - horizon}, nil
		} else if wait > 0 {
			return grant{low: []time.Duration{wait}}, nil
		}
		return grant{low: []time.Duration{50 * ms, 60 * ms}}, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		got := make(chan *Permit)
		go func() { got <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait() // now the caller waits for its slot, which is in 50 ms
		l.BackOff(2*time.Second, time.Now())
		p := <-got
		if at := time.Since(r.start); at < 2*time.Second || at > 2100*ms || !p.Spend() {
			t.Errorf("got a permit at %v during a backoff of 2 s", at)
		}
	})
}

func TestEvents_BackoffIsRepeatedRefundIsNot(t *testing.T) {
	r := &redisDouble{answer: func(n int, d demand) (grant, error) {
		if n == 1 {
			return grant{}, errors.New("no answer in time")
		}
		return grantAll(n, d)
	}}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		config := second(500, 450, 100, 0)
		config.Policies = append(config.Policies, Policy{Name: "day", Limit: 1000, Window: Day})
		quota, err := NewQuota(config)
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		l.alloc.setQuota(quota, 1, false)
		l.mu.Unlock()
		p := mustAcquire(t, l, schemas.Low)
		sleep(permitLife + 1)
		l.mu.Lock()
		l.alloc.pending.ofSource = append(l.alloc.pending.ofSource, backoffEvent(5*time.Microsecond, 6*time.Microsecond, 7))
		l.mu.Unlock()
		if p.Spend() {
			t.Error("an expired permit was spent")
		}
		mustAcquire(t, l, schemas.Low)
		sent := ""
		for _, d := range r.demands[1:] {
			sent += eventText(d.events) + ";"
		}
		if strings.Count(sent, "backoff 5 6 7") != 2 || strings.Count(sent, "refund") != 1 {
			t.Errorf("got events %q", sent)
		}
	})
}

func TestAcquire_CanceledContextMakesNoCall(t *testing.T) {
	r := &redisDouble{answer: grantAll}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Acquire(ctx, schemas.Low, Call{}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if len(r.demands) != 0 {
			t.Errorf("demands %+v", r.demands)
		}
	})
}

func TestDecode_RejectsMalformedReplies(t *testing.T) {
	const now, birth = 1_800_000_000_000_000, 1_700_000_000_000_000
	for _, reply := range [][]int64{
		nil,
		{-1},
		{1, 0, now},
		{0, 0, now, 0},
		{1, 0, now, 0, birth},
		{0, 0, now, 0, birth, 1, 5, 0},
		{-1, 1, now, 0, birth},
		{1, -1, now, 0, birth},
		{2, 0, now, 0, birth, 1, 5, 0},
		{2, 0, now, 0, birth, 3, 5, 0},
		{0, 0, now, 0, birth, 0},
		{0, 0, now, 0, birth, 0, 0},
		{1, 0, now, 0, birth, -1, 5, 0},
		{1, 0, now, 0, birth, 5, 0, 1, 0},
		{2000, 1, now, 0, birth, 2001, 0, 0},
	} {
		if g, err := decodeGrant(reply); err == nil {
			t.Errorf("%v: got %+v, want an error", reply, g)
		}
	}
}
