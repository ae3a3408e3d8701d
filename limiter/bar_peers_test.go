package limiter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	// redis_rate is the most common GCRA on Redis for Go, by the authors of go-redis. Only
	// tests use it.
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

const (
	sliceTime = 200 * time.Millisecond
	rounds    = 15
)

// peer is one of the rate limiters that the benchmark compares: freshet's limiter, or another
// implementation.
type peer struct {
	name    string
	command string // the Redis command that the rate limiter uses, as it is named in Redis' statistics
	acquire func(client int) error
}

// strangers returns the rate limiters with which freshet's limiter is compared. Their limits are so
// high that no request is rejected.
func strangers(t *testing.T, rdb *redis.Client) []peer {
	t.Helper()
	ctx := t.Context()
	counter := servicetest.Name("bar")
	t.Cleanup(func() { _ = rdb.Del(context.WithoutCancel(ctx), counter).Err() })
	rate, adr := rateAdmits(rdb, 1_000_000), adrAdmits(t, rdb, 1_000_000_000)
	return []peer{
		{"PING", "ping", func(int) error { return rdb.Ping(ctx).Err() }},
		{"INCR", "incr", func(int) error { return rdb.Incr(ctx, counter).Err() }},
		{"redis_rate", "evalsha", func(int) error { return admitted(rate(ctx)) }},
		{"ADR's script", "evalsha", func(int) error { return admitted(adr(ctx)) }},
	}
}

func admitted(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("a limit that nobody can reach refused a call")
	}
	return err
}

// admits requests one call and reports whether it is admitted.
type admits func(ctx context.Context) (bool, error)

// rateAdmits returns a function that requests a call from redis_rate, with a limit of `limit`
// calls per second.
func rateAdmits(rdb *redis.Client, limit int) admits {
	limiter, key := redis_rate.NewLimiter(rdb), servicetest.Name("bar")
	return func(ctx context.Context) (bool, error) {
		result, err := limiter.Allow(ctx, key, redis_rate.PerSecond(limit))
		return err == nil && result.Allowed == 1, err
	}
}

// adrAdmits returns a function that requests a call from a script with the rules of adr-013, with
// a limit of `limit` calls per second.
func adrAdmits(t *testing.T, rdb *redis.Client, limit int) admits {
	t.Helper()
	source, err := os.ReadFile("../lua/testdata/adr_buckets.lua")
	if err != nil {
		t.Fatal(err)
	}
	script, tag := redis.NewScript(string(source)), "{"+servicetest.Name("bar")+"}"
	keys := []string{tag + ":all", tag + ":low"}
	return func(ctx context.Context) (bool, error) {
		const high = 1
		n, err := script.Run(ctx, rdb, keys, limit, limit, limit, limit, time.Now().UnixMilli(), high).Int()
		return n == 1, err
	}
}

// worstSecond requests calls from an idle rate limiter, one directly after the other. It returns how
// many calls the limiter admits at most within one second.
func worstSecond(t *testing.T, acquire admits) int {
	t.Helper()
	var at []time.Time
	for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); {
		ok, err := acquire(t.Context())
		if err != nil {
			t.Error(err)
			break
		}
		if ok {
			at = append(at, time.Now())
		}
	}
	return mostInASecond(at)
}

// comparison contains, for each rate limiter, the measured calls per second and the time that Redis
// needs for a call. Each has one value for each of the measurements (rounds).
type comparison struct {
	peers     []peer
	perSecond map[string][]float64
	usec      map[string][]float64 // time in µs that Redis itself needs per call
}

// compare measures the rate limiters in turn, and repeats this several times (rounds). Each of them is
// called by this number of concurrent clients.
func compare(t *testing.T, rdb *redis.Client, peers []peer, clients int) comparison {
	t.Helper()
	c := comparison{peers, map[string][]float64{}, map[string][]float64{}}
	for _, p := range peers { // connect and load the scripts before the measurement
		keepAsking(t, clients, sliceTime/10, p.acquire)
	}
	for range rounds {
		for _, p := range peers {
			perSecond, usec := c.measure(t, rdb, p, clients)
			c.perSecond[p.name] = append(c.perSecond[p.name], perSecond)
			c.usec[p.name] = append(c.usec[p.name], usec)
		}
	}
	return c
}

// measure runs one rate limiter for a short period. If Redis counts more than one command per request,
// another program is using Redis, and measure repeats the period, up to three times.
func (c comparison) measure(t *testing.T, rdb *redis.Client, p peer, clients int) (perSecond, usec float64) {
	t.Helper()
	for range 4 {
		callsBefore, usecBefore := commandStats(t, rdb, p.command)
		n, took := keepAsking(t, clients, sliceTime, p.acquire)
		calls, total := commandStats(t, rdb, p.command)
		calls, total = calls-callsBefore, total-usecBefore
		perSecond, usec = float64(n)/took.Seconds(), total/calls
		if calls < 1.02*float64(n) {
			break
		}
	}
	return perSecond, usec
}

// ratio compares two rate limiters: it divides the calls per second of the limiter `of` by the calls
// per second of the limiter `to`. It returns the median of the quotients of all measurements.
func (c comparison) ratio(of, to string) float64 {
	var ratios []float64
	for i, n := range c.perSecond[of] {
		ratios = append(ratios, n/c.perSecond[to][i])
	}
	return median(ratios)
}

func (c comparison) serverTime(of string) float64 { return median(c.usec[of]) }

func (c comparison) rates(b *bar) {
	for _, p := range c.peers {
		b.addUnlimited(p.name, "/s", median(c.perSecond[p.name]))
	}
}

// keepAsking runs `clients` concurrent clients for the duration d. It returns the number of
// requests and the time taken.
func keepAsking(t *testing.T, clients int, d time.Duration, acquire func(client int) error) (n int, took time.Duration) {
	t.Helper()
	counts := make([]int, clients)
	var wg sync.WaitGroup
	start := time.Now()
	for client := range clients {
		wg.Go(func() {
			for count := 0; ; count++ {
				if time.Since(start) > d {
					counts[client] = count
					return
				}
				if err := acquire(client); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	took = time.Since(start)
	for _, count := range counts {
		n += count
	}
	if n == 0 {
		t.FailNow()
	}
	return n, took
}

// commandStats returns how often Redis has run a command since its start, and the total time in
// µs.
func commandStats(t *testing.T, rdb *redis.Client, command string) (calls, usec float64) {
	t.Helper()
	text, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	if _, after, found := strings.Cut(text, "cmdstat_"+command+":"); found {
		if _, err := fmt.Sscanf(after, "calls=%f,usec=%f,", &calls, &usec); err != nil {
			t.Fatal(err)
		}
	}
	return calls, usec
}
