package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/servicetest"
)

// newSharedLimiter returns the limiter of one process. It shares its counts over Redis with the
// limiters of other processes.
func newSharedLimiter(rdb redis.UniversalClient, l Limits) *ClientLimiter {
	m, _ := newTestLimiter(l)
	m.Share(rdb, slog.New(slog.DiscardHandler))
	m.shared.timeout = time.Minute // a busy machine must not look like a failure of Redis
	return m
}

// grants returns how many of n concurrent requests are allowed. They are sent to the processes in turn.
func grants(client string, n int, processes ...*ClientLimiter) int {
	var allowed atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if processes[i%len(processes)].AllowRequests(client, 1) == nil {
				allowed.Add(1)
			}
		})
	}
	all.Wait()
	return int(allowed.Load())
}

func TestShared_ProcessesGrantTheLimitTogether(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := Limits{Requests: "100/h", Shared: true}
		one, two := newSharedLimiter(rdb, l), newSharedLimiter(rdb, l)
		client := servicetest.Name("key")
		if got := grants(client, 240, one, two); got != 100 {
			t.Errorf("granted requests: got %d, want the limit of 100", got)
		}
		if got := grants(client+"2", 60, two); got != 60 {
			t.Errorf("granted requests of another client: got %d, want 60", got)
		}
		err := newSharedLimiter(rdb, l).AllowRequests(client, 1)
		p, _ := errors.AsType[*problem.HTTPError](err)
		if p == nil || p.Code != problem.TooManyRequests || p.After < 30*time.Second || p.After > 36*time.Second {
			t.Errorf("a new process: got %v, want too-many-requests until a token is added, within 36 s", err)
		}
	})
}

func TestShared_LargeCallLeavesADebt(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := Limits{Requests: "60/h", Shared: true}
		one, two := newSharedLimiter(rdb, l), newSharedLimiter(rdb, l)
		client := servicetest.Name("key")
		if err := one.AllowRequests(client, 300); err != nil {
			t.Errorf("300 requests at once: got %v, want none, because the bucket was full", err)
		}
		p, _ := errors.AsType[*problem.HTTPError](two.AllowRequests(client, 1))
		if p == nil || p.After < 4*time.Hour || p.After > 241*time.Minute {
			t.Errorf("one more request: got %v, want a refusal for 241 minutes", p)
		}
	})
}

func TestShared_LimitsEachProcessWithoutRedis(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	l := Limits{Requests: "100/h", Shared: true}
	one, two := newSharedLimiter(rdb, l), newSharedLimiter(rdb, l)
	if got := grants("key:a", 60, one, two); got != 60 {
		t.Fatalf("granted requests: got %d, want 60", got)
	}
	server.Close()
	for i, m := range []*ClientLimiter{one, two} {
		if got := grants("key:a", 200, m); got != 70 {
			t.Errorf("process %d without redis: got %d granted requests, want the 70 that are left of its own limit", i, got)
		}
		if got := testutil.ToFloat64(m.notShared); got < 70 {
			t.Errorf("process %d: access_not_shared_total: got %v, want at least 70", i, got)
		}
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	counted := testutil.ToFloat64(one.notShared)
	n := 0
	servicetest.WaitFor(t, 5*time.Second, "the shared limit applies again", func() bool {
		n++
		_ = one.AllowRequests(fmt.Sprint("key:", n), 1) // this client is new, so its bucket is full
		now := testutil.ToFloat64(one.notShared)
		again := now == counted
		counted = now
		return again
	})
}

// While Redis fails, requests must not wait for it: after three failed calls, one call is made each
// half second.
func TestShared_CallsAFailingRedisTwiceASecond(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	calls := 0
	rdb.AddHook(servicetest.RedisHook(func(context.Context, []redis.Cmder, func(context.Context) error) error {
		calls++
		return errors.New("connection refused")
	}))
	synctest.Test(t, func(t *testing.T) {
		m := newSharedLimiter(rdb, Limits{Requests: "100000/h", Shared: true})
		for range 1000 { // 100 requests a second for ten seconds
			if err := m.AllowRequests("key:a", 1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if calls < 20 || calls > 25 {
			t.Errorf("calls to a failing redis in 10 s: got %d, want 20 to 25", calls)
		}
	})
}

// A client above its limit must not cost a Redis call for each refused request.
func TestShared_RefusesWithoutACall(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	m := newSharedLimiter(rdb, Limits{Requests: "10/h", Shared: true})
	if got := grants("key:a", 10, m); got != 10 {
		t.Fatalf("granted requests: got %d, want 10", got)
	}
	before := server.CommandCount()
	if got := grants("key:a", 50, m); got != 0 || server.CommandCount() != before {
		t.Errorf("got %d granted requests and %d commands, want none", got, server.CommandCount()-before)
	}
}

func TestShared_NeedsALimitOfRequests(t *testing.T) {
	for requests, want := range map[Rate]string{"0": "limits.shared: there is no limit of requests to share", "": "limits.shared", "10/s": ""} {
		c := DefaultConfig()
		c.Limits.Requests, c.Limits.Shared = requests, true
		if err := c.Check(); (err != nil) != (want != "") || err != nil && !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("requests %q: got %v, want %q", requests, err, want)
		}
	}
}
