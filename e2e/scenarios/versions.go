package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// versions judges the version numbers of requests. Five query services enqueue refreshes of the
// same entities while Redis is killed and restarted empty. No version of an entity may repeat or
// decrease.
func versions(ctx context.Context, s *site, o options) error {
	const processes, different, rate = 5, 50, 100
	// A cool-down of 1 ms makes each refresh a new request.
	s.Edits = []string{"cooldown: 1m", "cooldown: 1ms", "freshFor: 1h", "freshFor: 1ms"}
	// The calls are long, so that some are in flight when Redis is killed.
	if err := s.Prepare(ctx, onlySmall, "--latency", "1s-2s"); err != nil {
		return err
	}
	for _, name := range []string{"worker-1", "worker-2"} {
		if _, err := s.Worker(ctx, name); err != nil {
			return err
		}
	}
	readers, err := s.Readers(ctx, processes, small, "")
	if err != nil {
		return err
	}
	var accepted atomic.Int64
	// Request n goes to query service n % 5. The number of its key is n, plus 7 after each round of all
	// query services, so that several query services get requests for each key.
	refresh := func(n int) {
		status, err := readers[n%processes].Refresh(ctx, fmt.Sprint("key-", (n+n/processes*7)%different))
		if err == nil && status == http.StatusAccepted {
			accepted.Add(1)
		}
	}
	length := time.Duration(o.seconds) * time.Second
	var killed, restarted time.Time
	var inFlight int
	var killErr error
	var killing sync.WaitGroup
	killing.Go(func() {
		if killErr = harness.Pause(ctx, length/2); killErr != nil {
			return
		}
		var st simulator.Stats
		if st, killErr = s.Stats(ctx); killErr != nil {
			return
		}
		inFlight, killed = st.InFlight, time.Now()
		s.Redis.Kill()
		s.Redis, killErr = s.StartRedis(ctx, s.Redis.Address)
		restarted = time.Now()
	})
	err = harness.AtRate(ctx, rate, length, refresh)
	killing.Wait()
	if err = errors.Join(err, killErr); err != nil {
		return err
	}
	if err := s.UntilCommitted(ctx, 2*harness.Timeout); err != nil {
		return err
	}
	all, err := s.Requests(ctx, schemas.High)
	if err != nil {
		return err
	}
	twice, back := countDisorder(all)
	before, after := 0, 0
	for _, r := range all {
		if r.RequestedAt.Before(killed) {
			before++
		} else if r.RequestedAt.After(restarted) {
			after++
		}
	}
	asked := rate * o.seconds
	t := &table{}
	t.judge(fmt.Sprintf("refreshes accepted despite the outage, of %d", asked), strconv.FormatInt(accepted.Load(), 10), fmt.Sprintf(">=%d", asked/2), int(accepted.Load()) >= asked/2)
	t.judge("calls in flight when Redis was killed", strconv.Itoa(inFlight), fmt.Sprintf(">=%d", different/2), inFlight >= different/2)
	t.judge("versions issued, before and after the restart", fmt.Sprintf("%d, %d", before, after),
		fmt.Sprintf(">=%d each", different), before >= different && after >= different)
	t.judgeEqual("versions issued twice for an entity", twice, 0)
	t.judgeEqual("versions lower than an earlier one", back, 0)
	// The version of a fetch must be higher than the versions of the requests that it satisfies.
	older := 0
	for key := range harness.CountByKey(all) {
		stored, err := s.Number(ctx, "SELECT version FROM snapshot_state WHERE key = $1", key)
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.Key == key && r.Version >= int64(stored) {
				older++
			}
		}
	}
	t.judgeEqual("requests with a version not below that of a stored fetch", older, 0)
	s.addResult("versions", t)
	return nil
}

// countDisorder returns two numbers of records: records with the same version as an earlier
// record of their entity, and records with a lower version. All records of an entity are in one
// partition, so their order is known.
func countDisorder(all []harness.Request) (twice, back int) {
	last, seen := map[string]int64{}, map[string]bool{}
	for _, r := range all {
		if id := r.Key + " " + strconv.FormatInt(r.Version, 10); seen[id] {
			twice++
		} else {
			seen[id] = true
		}
		if r.Version < last[r.Key] {
			back++
		}
		last[r.Key] = max(last[r.Key], r.Version)
	}
	return twice, back
}

// release judges that exactly one of many concurrent releases of a lock succeeds. A release of an
// earlier lock must never release a later lock of the same entity.
func release(ctx context.Context, s *site, _ options) error {
	const entities, racers, connections = 300, 20, 20
	rdb := redis.NewClient(&redis.Options{Addr: s.Redis.Address, PoolSize: connections, MinIdleConns: connections})
	defer func() { _ = rdb.Close() }()
	var wins [2][]int // number of successful rollbacks, and of successful settles, for each entity
	lost, stolen := 0, 0
	for i := range entities {
		e := lock{rdb, schemas.Entity{Source: s.Source, Facet: small, Key: fmt.Sprint("key-", i)}}
		first, err := e.acquire(ctx, schemas.High)
		if err != nil {
			return err
		}
		won, err := concurrently(racers, func(int) (bool, error) { return e.run(ctx, lua.CoalesceRollback, first) })
		if err != nil {
			return err
		}
		wins[0] = append(wins[0], won)

		second, err := e.acquire(ctx, schemas.Low)
		if err != nil {
			return err
		}
		if _, err := e.run(ctx, lua.CoalesceConfirm, second, time.Minute.Milliseconds()); err != nil {
			return err
		}
		won, err = concurrently(racers, func(int) (bool, error) { return e.settle(ctx, second) })
		if err != nil {
			return err
		}
		wins[1] = append(wins[1], won)

		// Many clients release the entity's third lock at the same time. Meanwhile one client acquires
		// the next lock, the fourth. None of the releases may release the fourth lock.
		third, err := e.acquire(ctx, schemas.Low)
		if err != nil {
			return err
		}
		var fourth int64
		_, err = concurrently(racers, func(n int) (ok bool, err error) {
			switch {
			case n == racers/2:
				fourth, err = e.acquire(ctx, schemas.High)
			case n%2 == 0:
				ok, err = e.run(ctx, lua.CoalesceRollback, third)
			default:
				ok, err = e.settle(ctx, third)
			}
			return ok, err
		})
		if err != nil {
			return err
		}
		if fourth <= third {
			lost++ // an error: the fourth lock must have a higher version than the third
		}
		if held, err := rdb.HGet(ctx, e.key(), "lock").Result(); err != nil || !strings.HasPrefix(held, fmt.Sprintf("HIGH %d ", fourth)) {
			stolen++
		}
	}
	t := &table{}
	for i, name := range []string{"rolled back", "settled"} {
		exact := 0
		for _, n := range wins[i] {
			if n == 1 {
				exact++
			}
		}
		t.judgeEqual(fmt.Sprintf("locks %s by exactly one of %d", name, racers), exact, entities)
	}
	t.judgeEqual("later locks without a higher version", lost, 0)
	t.judgeEqual("later locks released by a release of an earlier one", stolen, 0)
	s.addResult("release", t)
	return nil
}

// lock runs the coalescing scripts of the producer and of the worker for one entity.
type lock struct {
	rdb    redis.UniversalClient
	entity schemas.Entity
}

func (l lock) key() string { return "upd:{" + l.entity.String() + "}" }

// acquire acquires the entity's lock in a lane and returns its version. The lock must be free or
// held by LOW.
func (l lock) acquire(ctx context.Context, lane schemas.Lane) (int64, error) {
	answer, err := eval.Once(ctx, l.rdb, lua.CoalesceAcquire, eval.Call{
		Key: l.key(), Args: []any{string(lane), 0, 0, 0, 0, harness.Timeout.Milliseconds(), time.Hour.Milliseconds()},
	}).Slice()
	if err != nil {
		return 0, err
	}
	number, _ := answer[1].(int64)
	if answer[0] != "PUBLISHED" && answer[0] != "UPGRADED" {
		return 0, fmt.Errorf("acquire a free lock: got %v, want PUBLISHED or UPGRADED", answer)
	}
	return number, nil
}

// run runs a Lua script that releases the lock. It reports whether the script has released the lock,
// which the script shows by returning 1.
func (l lock) run(ctx context.Context, script lua.Script, args ...any) (bool, error) {
	n, err := eval.Once(ctx, l.rdb, script, eval.Call{Key: l.key(), Args: args}).Int()
	return n == 1, err
}

func (l lock) settle(ctx context.Context, number int64) (bool, error) {
	return l.run(ctx, lua.RequestSettle, number, 1, "", 0, time.Hour.Milliseconds(),
		schemas.SettledChannel(l.entity.Source), schemas.Settled{Entity: l.entity, Number: number}.Encode())
}

// cluster runs the whole pipeline on a Redis Cluster and judges it.
func cluster(ctx context.Context, s *site, _ options) error {
	if err := s.UseRedisCluster(); err != nil {
		return err
	}
	if err := s.Prepare(ctx, onlySmall, "--latency", "30ms-1.7s"); err != nil {
		return err
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: s.RedisCluster})
	s.OnClose(func() { _ = rdb.Close() })
	return s.pipeline(ctx, "cluster", 2000, false, func(t *table) error {
		var nodes, used, entities atomic.Int64
		err := rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			n, err := harness.ScanKeys(ctx, node, "upd:{"+s.Source+"/*")
			nodes.Add(1)
			entities.Add(int64(len(n)))
			if len(n) > 0 {
				used.Add(1)
			}
			return err
		})
		t.judge("nodes, nodes with entities", fmt.Sprintf("%d, %d", nodes.Load(), used.Load()), ">=3, all",
			nodes.Load() >= 3 && used.Load() == nodes.Load())
		t.judgeEqual("entities with a state in Redis", int(entities.Load()), 2000)
		if err != nil {
			return err
		}
		// All of the limiter's keys have the same hash tag and are in one hash slot of the
		// cluster. The limiter can therefore grant a permit with one atomic script on one node.
		there, err := rdb.Exists(ctx, "quota:{"+s.Source+"}:state").Result()
		t.judgeEqual("limiter states in Redis", int(there), 1)
		return err
	})
}
