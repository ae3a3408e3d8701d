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

	// For tests alone, as the peer that most Go programs have: the best known GCRA
	// on Redis, of go-redis' own authors.
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

const (
	sliceTime = 200 * time.Millisecond
	rounds    = 15
)

// peer is asked for one permit, or for the like of one.
type peer struct {
	name    string
	command string // what Redis counts it as
	ask     func(client int) error
}

// strangers are the peers that are not ours, on limits that refuse nobody.
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

// admits asks once whether a call is admitted.
type admits func(ctx context.Context) (bool, error)

// rateAdmits is redis_rate with a limit a second.
func rateAdmits(rdb *redis.Client, limit int) admits {
	limiter, key := redis_rate.NewLimiter(rdb), servicetest.Name("bar")
	return func(ctx context.Context) (bool, error) {
		result, err := limiter.Allow(ctx, key, redis_rate.PerSecond(limit))
		return err == nil && result.Allowed == 1, err
	}
}

// adrAdmits is a script by the rules of adr-013, with a limit a second.
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

// worstSecond asks an idle peer as fast as it answers, and returns the most that
// it admitted in any sliding second.
func worstSecond(t *testing.T, ask admits) int {
	t.Helper()
	var at []time.Time
	for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); {
		ok, err := ask(t.Context())
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

// comparison holds, by peer, a figure of each round.
type comparison struct {
	peers     []peer
	perSecond map[string][]float64
	usec      map[string][]float64 // Redis' own time a call
}

// compare lets so many clients of each peer ask, in turns of a slice.
func compare(t *testing.T, rdb *redis.Client, peers []peer, clients int) comparison {
	t.Helper()
	c := comparison{peers, map[string][]float64{}, map[string][]float64{}}
	for _, p := range peers { // connections are made, and scripts known, before anything is measured
		keepAsking(t, clients, sliceTime/10, p.ask)
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

// measure lets one peer ask for one slice. None makes more than one call to Redis
// an ask: if Redis counted more, others use it too, and it is measured again, a
// few times.
func (c comparison) measure(t *testing.T, rdb *redis.Client, p peer, clients int) (perSecond, usec float64) {
	t.Helper()
	for range 4 {
		callsBefore, usecBefore := commandStats(t, rdb, p.command)
		n, took := keepAsking(t, clients, sliceTime, p.ask)
		calls, total := commandStats(t, rdb, p.command)
		calls, total = calls-callsBefore, total-usecBefore
		perSecond, usec = float64(n)/took.Seconds(), total/calls
		if calls < 1.02*float64(n) {
			break
		}
	}
	return perSecond, usec
}

// ratio compares two peers' rates round by round.
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
		b.beside(p.name, "/s", median(c.perSecond[p.name]))
	}
}

// keepAsking lets so many clients ask again and again for a time, and returns how
// often they did and how long it took.
func keepAsking(t *testing.T, clients int, d time.Duration, ask func(client int) error) (n int, took time.Duration) {
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
				if err := ask(client); err != nil {
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

// commandStats returns how often Redis ran a command since its start, and how
// many microseconds that took.
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
