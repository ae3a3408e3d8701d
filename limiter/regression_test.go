package limiter

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

func TestRun_DoesNotSpinWithoutRedisAndCount(t *testing.T) {
	var running atomic.Pointer[Limiter]
	var spun atomic.Bool
	// The time of a synctest bubble passes only while all goroutines are blocked, so it stands still
	// during a busy loop. The following timer runs in real time, and so it detects such a loop.
	watch := time.AfterFunc(2*time.Second, func() {
		spun.Store(true)
		if l := running.Load(); l != nil {
			l.mu.Lock()
			l.redis.pause = time.Time{} // a zero time ends the busy loop that this timer has detected
			l.mu.Unlock()
		}
	})
	defer watch.Stop()
	r := &redisDouble{}
	r.answer = counting(r)
	u := &usageDouble{}
	simulatedWith(t, r, withDay(), Deps{Usage: u}, func(t *testing.T, l *Limiter) {
		running.Store(l)
		mustAcquire(t, l, schemas.Low)
		u.fail(errors.New("the database is away"))
		r.answers(func(int, demand) (grant, error) { return grant{}, errors.New("connection refused") })
		acquireLater(t, l, schemas.Low)
		elapse(3 * time.Minute)
		if spun.Load() {
			t.Error("Run loops without waiting")
		}
	})
}

func TestDayCount_IgnoresEventOnlyReplies(t *testing.T) {
	r := &redisDouble{}
	r.answer = counting(r)
	u := &usageDouble{err: errors.New("the database is away")}
	simulatedWith(t, r, withDay(), Deps{Usage: u}, func(t *testing.T, l *Limiter) {
		l.BackOff(time.Second, time.Now())
		u.fail(nil)
		elapse(10 * time.Second)
		if len(u.wrote) > 0 || len(r.demands) == 0 {
			t.Errorf("got the saved count %+v after %d calls", u.wrote, len(r.demands))
		}
	})
}

func TestNewQuota_RejectsOverflowingReserves(t *testing.T) {
	for _, c := range []Config{second(500, 450, math.MaxInt, 10), second(500, 450, 100, math.MaxInt-50)} {
		if q, err := NewQuota(c); err == nil || !strings.Contains(err.Error(), "reserve all 450 calls") {
			t.Errorf("%+v: %+v, %v", c.Policies[0], q.Bounds(), err)
		}
	}
}

// answers replaces the function that computes the replies of the fake Redis.
func (r *redisDouble) answers(answer func(n int, d demand) (grant, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func TestReport_SlowViewExpiresNoPermit(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	rdb.AddHook(servicetest.RedisHook(func(ctx context.Context, commands []redis.Cmder, send func(context.Context) error) error {
		if commands[0].Name() == "hset" { // a report
			<-time.After(2 * permitLife)
		}
		return send(ctx)
	}))
	l, err := New("nexon", second(500, 450, 100, 0), withoutLogs(Deps{Redis: rdb}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	for range 20 {
		mustAcquire(t, l, schemas.High).Release()
		l.mu.Lock()
		l.reports.wanted = true
		l.mu.Unlock()
		if p := mustAcquire(t, l, schemas.Low); !p.Spend() {
			t.Error("a permit expired before its caller got it")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
