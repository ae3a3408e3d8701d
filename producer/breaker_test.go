package producer

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// failingRedis is a fake Redis for tests in a synctest bubble, where no network is possible. It
// replies to each script that another request covers the request. While `down` is true, it fails
// instead.
type failingRedis struct {
	down  bool
	stall time.Duration // how long each failed call takes
	calls int
}

func (f *failingRedis) answer(_ context.Context, commands []redis.Cmder, _ func(context.Context) error) error {
	f.calls++
	if f.down {
		time.Sleep(f.stall)
		return errors.New("connection refused")
	}
	if script, ok := commands[0].(interface{ SetVal(any) }); ok {
		script.SetVal([]any{string(AlreadyProcessing), int64(1), "", int64(0)})
	}
	return nil
}

// withFailingRedis runs a test in a synctest bubble with a producer whose Redis can fail.
func withFailingRedis(t *testing.T, test func(t *testing.T, f *failingRedis, p *Producer, request func() Result)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &failingRedis{}
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
		defer func() { _ = rdb.Close() }()
		rdb.AddHook(servicetest.RedisHook(f.answer))
		p := New(rdb, nil, 100, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), observe.Tracer{})
		e := schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}
		test(t, f, p, func() Result {
			return p.Enqueue(t.Context(), Request{Entity: e, Lane: schemas.High, Reason: schemas.Stale})
		})
	})
}

// outage makes Redis fail for the time `length`, while one request arrives every 10 ms.
func (f *failingRedis) outage(length time.Duration, request func() Result) {
	f.down = true
	for began := time.Now(); time.Since(began) < length; time.Sleep(10 * time.Millisecond) {
		request()
	}
	f.down = false
}

func TestRedisBreaker_RejectsAtOnceWhileOpen(t *testing.T) {
	withFailingRedis(t, func(t *testing.T, f *failingRedis, _ *Producer, request func() Result) {
		f.down = true
		for range 10 {
			request()
		}
		before := f.calls
		for range 100 {
			if r := request(); !errors.Is(r.Err, ErrRedis) {
				t.Fatalf("a request after ten failures: got the error %v, want %v", r.Err, ErrRedis)
			}
		}
		if got := f.calls - before; got != 0 {
			t.Errorf("calls of Redis while the breaker is open: got %d, want 0", got)
		}
	})
}

func TestRedisBreaker_CallsRedisTwiceASecondInAnOutage(t *testing.T) {
	withFailingRedis(t, func(t *testing.T, f *failingRedis, _ *Producer, request func() Result) {
		f.outage(20*time.Second, request)
		if got, want := f.calls, 10+2*20; got > want {
			t.Errorf("calls of Redis in an outage of 20 s: got %d, want at most %d", got, want)
		}
	})
}

// After an outage of any length, requests must be accepted again within 2 s. If Redis stalls
// instead of failing, the half-open probe blocks for the Redis client's read timeout of 1 s, which
// is a part of these 2 s.
func TestRedisBreaker_AcceptsWithinTwoSecondsOfTheEnd(t *testing.T) {
	for name, outage := range map[string]struct{ length, stall time.Duration }{
		"cut for 6s":      {6 * time.Second, 0},
		"cut for 20s":     {20 * time.Second, 0},
		"cut for 10m":     {10 * time.Minute, 0},
		"stalled for 6s":  {6 * time.Second, time.Second},
		"stalled for 20s": {20 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			withFailingRedis(t, func(t *testing.T, f *failingRedis, _ *Producer, request func() Result) {
				f.stall = outage.stall
				f.outage(outage.length, request)
				ended := time.Now()
				for request().Err != nil {
					time.Sleep(10 * time.Millisecond)
				}
				if got := time.Since(ended); got > 2*time.Second {
					t.Errorf("the first accepted request: got %v after the outage, want at most 2s", got)
				}
			})
		})
	}
}

func TestRedisBreaker_ClosesAtTheFirstAnswer(t *testing.T) {
	withFailingRedis(t, func(t *testing.T, f *failingRedis, p *Producer, request func() Result) {
		f.outage(6*time.Second, request)
		time.Sleep(openTimeout)
		if r := request(); r.Err != nil {
			t.Fatalf("the first request after the outage: got the error %v, want none", r.Err)
		}
		if got := p.breaker.State(); got != gobreaker.StateClosed {
			t.Errorf("state after the first answer: got %v, want %v", got, gobreaker.StateClosed)
		}
	})
}

// A few failures among many successes do not open the breaker.
func TestRedisBreaker_StaysClosedBelowHalfOfFailures(t *testing.T) {
	withFailingRedis(t, func(t *testing.T, f *failingRedis, _ *Producer, request func() Result) {
		for n := range 300 {
			f.down = n%3 == 2
			if r := request(); errors.Is(r.Err, ErrRedis) {
				t.Fatalf("request %d: got %v, want the breaker closed while two of three calls succeed", n+1, r.Err)
			}
		}
	})
}
