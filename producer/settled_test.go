package producer

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// subscriber records the calls of SubscribeSettled in order: a bool for onConnected, a
// schemas.Settled for onSettled.
type subscriber struct {
	*testing.T
	rdb    redis.UniversalClient // Redis client that publishes the settle messages
	source string
	calls  chan any
	stop   func()
}

// subscribe subscribes to a new source and to the sources in `others` until the test ends.
func subscribe(t *testing.T, rdb redis.UniversalClient, others ...string) *subscriber {
	t.Helper()
	f := &subscriber{T: t, rdb: rdb, source: servicetest.Name("nexon"), calls: make(chan any, 10_000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- SubscribeSettled(ctx, rdb, append(others, f.source), func(s schemas.Settled) { f.calls <- s }, func(up bool) { f.calls <- up })
	}()
	f.stop = func() {
		t.Helper()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			done <- nil
		case <-time.After(10 * time.Second):
			t.Error("SubscribeSettled did not return after its context ended")
		}
	}
	t.Cleanup(f.stop)
	return f
}

// expect fails the test unless the next recorded calls are exactly the calls in `want`.
func (f *subscriber) expect(want ...any) {
	f.Helper()
	for i, w := range want {
		select {
		case got := <-f.calls:
			if got != w {
				f.Fatalf("call %d is %+v, want %+v", i, got, w)
			}
		case <-time.After(10 * time.Second):
			f.Fatalf("call %d: got none, want %+v", i, w)
		}
	}
}

func (f *subscriber) end(key string, number int64) schemas.Settled {
	return schemas.Settled{Entity: schemas.Entity{Source: f.source, Facet: "character", Key: key}, Number: number}
}

func (f *subscriber) settle(ends ...schemas.Settled) {
	f.Helper()
	var all []schemas.End
	for _, s := range ends {
		all = append(all, schemas.End{Entity: s.Entity, Number: s.Number, Satisfied: s.Number%2 == 0})
	}
	if err := NewCoalescer(f.rdb).Settle(f.Context(), all); err != nil {
		f.Fatal(err)
	}
}

func (f *subscriber) expectOpen() {
	f.Helper()
	s := f.end("가/a {b}", time.Now().UnixNano())
	f.settle(s)
	f.expect(s)
}

func TestSubscribeSettled_DeliversInOrder(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		other := servicetest.Name("nexon")
		f := subscribe(t, rdb, other, servicetest.Name("nexon"), other)
		f.expect(true)
		f.expectOpen()
		for batch := range int64(5) {
			var ends []schemas.Settled
			for n := range int64(200) {
				ends = append(ends, f.end("a", batch*200+n))
			}
			f.settle(ends...)
		}
		for n := range int64(1000) {
			f.expect(f.end("a", n))
		}
		s := schemas.Settled{Entity: schemas.Entity{Source: other, Facet: "item", Key: "1 2/3"}, Number: 7}
		f.settle(s)
		f.expect(s)
		f.stop()
		f.expect(false)
	})
}

func TestSubscribeSettled_SkipsInvalidMessages(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	f := subscribe(t, rdb)
	f.expect(true)
	for _, message := range []string{"", "1", "x character/a", "1 character/", "1 character/a\n"} {
		if err := rdb.Publish(t.Context(), schemas.SettledChannel(f.source), message).Err(); err != nil {
			t.Fatal(err)
		}
	}
	f.expectOpen()
}

func TestSubscribeSettled_ConnectsWhenRedisReturns(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	kept := goleak.IgnoreCurrent()
	f := subscribe(t, rdb)
	f.expect(true)
	f.expectOpen()
	for range 3 {
		m.Close()
		f.expect(false)
		if err := m.Restart(); err != nil {
			t.Fatal(err)
		}
		f.expect(true)
		f.expectOpen()
	}
	m.Close()
	f.expect(false)
	f.stop() // stop the subscriber while Redis is unavailable
	if err := goleak.Find(kept); err != nil {
		t.Error(err)
	}
}

func TestSubscribeSettled_ReportsALostConnection(t *testing.T) {
	server := servicetest.PrivateRedis(t)
	f := subscribe(t, server.Client)
	f.expect(true)
	for range 5 {
		if n, err := server.Client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Result(); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		f.expect(false, true)
		f.expectOpen()
	}
	cut := time.Now()
	server.Kill()
	f.expect(false)
	t.Log("a killed Redis is noticed after", time.Since(cut))
	server.Start()
	f.expect(true)
	f.expectOpen()
}

func TestSubscribeSettled_DetectsAHangingRedis(t *testing.T) {
	server := servicetest.PrivateRedis(t)
	f := subscribe(t, server.Client)
	f.expect(true)
	f.expectOpen()
	hung := time.Now()
	server.Freeze()
	f.expect(false)
	if took := time.Since(hung); took > 4*time.Second { // on an idle machine it takes 2 s to detect that Redis hangs, on a busy machine longer
		t.Errorf("detection took %v, want at most 4s", took)
	}
	server.Continue()
	f.expect(true)
	f.expectOpen()
	server.Freeze()
	f.stop() // stop the subscriber before its connection is established
	f.expect(false)
	server.Continue()
}

func TestSubscribeSettled_KeepsAnIdleConnection(t *testing.T) {
	stands := func(t *testing.T, rdb redis.UniversalClient, commands func() int) {
		f := subscribe(t, rdb)
		f.expect(true)
		first := commands()
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for limit := time.After(30 * time.Second); commands() < first+3; {
			select {
			case <-look.C:
			case <-limit:
				t.Fatal("timeout: got no PING")
			}
		}
		f.expectOpen()
	}
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		rdb, m := servicetest.MiniRedis(t)
		stands(t, rdb, m.CommandCount)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := servicetest.PrivateRedis(t)
		pings := regexp.MustCompile(`cmdstat_ping:calls=(\d+)`)
		stands(t, server.Client, func() int {
			stats, err := server.Client.Info(t.Context(), "commandstats").Result()
			if err != nil {
				t.Fatal(err)
			}
			calls := pings.FindStringSubmatch(stats)
			if calls == nil {
				return 0
			}
			n, _ := strconv.Atoi(calls[1])
			return n
		})
	})
}

func TestSubscribeSettled_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rdb, _ := servicetest.MiniRedis(t)
	never := func(what any) { t.Error(fmt.Sprint("called with ", what)) }
	if err := SubscribeSettled(ctx, rdb, []string{"nexon"}, func(s schemas.Settled) { never(s) }, func(up bool) { never(up) }); err != nil {
		t.Error(err)
	}
}
