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

// versions: five processes ask for the same entities again and again, each time anew,
// and Redis forgets everything half-way; no number comes twice, and none goes back.
func versions(ctx context.Context, s *site, o options) error {
	const processes, different, rate = 5, 50, 100
	// A person may ask again at once, and a fetch begins after each wish.
	s.Edits = []string{"cooldown: 1m", "cooldown: 1ms", "freshFor: 1h", "freshFor: 1ms"}
	// So long that calls are under way when Redis is killed.
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
	ask := func(n int) { // 7 steps on in the entities at each round of the processes
		status, err := readers[n%processes].Refresh(ctx, fmt.Sprint("key-", (n+n/processes*7)%different))
		if err == nil && status == http.StatusAccepted {
			accepted.Add(1)
		}
	}
	length := time.Duration(o.seconds) * time.Second
	var killed, again time.Time
	var left int // calls under way
	var broken error
	var breaking sync.WaitGroup
	breaking.Go(func() {
		if broken = harness.Pause(ctx, length/2); broken != nil {
			return
		}
		var st simulator.Stats
		if st, broken = s.Stats(ctx); broken != nil {
			return
		}
		left, killed = st.InFlight, time.Now()
		s.Redis.Kill()
		s.Redis, broken = s.StartRedis(ctx, s.Redis.Address)
		again = time.Now()
	})
	err = harness.AtRate(ctx, rate, length, ask)
	breaking.Wait()
	if err = errors.Join(err, broken); err != nil {
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
		} else if r.RequestedAt.After(again) {
			after++
		}
	}
	asked := rate * o.seconds
	t := &table{}
	t.judge(fmt.Sprintf("wishes accepted of %d, in spite of the outage", asked), strconv.FormatInt(accepted.Load(), 10), fmt.Sprintf(">=%d", asked/2), int(accepted.Load()) >= asked/2)
	t.judge("calls under way when Redis was killed", strconv.Itoa(left), fmt.Sprintf(">=%d", different/2), left >= different/2)
	t.judge("numbers given, before and after Redis forgot", fmt.Sprintf("%d, %d", before, after),
		fmt.Sprintf(">=%d each", different), before >= different && after >= different)
	t.judgeEqual("numbers that an entity got twice", twice, 0)
	t.judgeEqual("numbers that went back", back, 0)
	// The fetch that answers a request has a number above its own.
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
	t.judgeEqual("requests with a number that no stored fetch is above", older, 0)
	s.addResult("versions", t)
	return nil
}

// countDisorder counts the numbers of an entity that come twice, and those that are below
// an earlier record's. An entity's records lie in one partition.
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

// release: a lock is released by many at the same time; one of them does it, and none
// takes away a lock that came later.
func release(ctx context.Context, s *site, _ options) error {
	const entities, racers, connections = 300, 20, 20
	rdb := redis.NewClient(&redis.Options{Addr: s.Redis.Address, PoolSize: connections, MinIdleConns: connections})
	defer func() { _ = rdb.Close() }()
	var wins [2][]int // of the rollbacks and settles of each entity
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

		// Now one takes the lock while others release the one before it.
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
			lost++ // a lock that was held and free again gives a later number
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
	t.judgeEqual("later locks that did not get a later number", lost, 0)
	t.judgeEqual("later locks that the release of an earlier took away", stolen, 0)
	s.addResult("release", t)
	return nil
}

// lock is an entity's, by the scripts as the producer and the worker run them.
type lock struct {
	rdb    redis.UniversalClient
	entity schemas.Entity
}

func (l lock) key() string { return "upd:{" + l.entity.String() + "}" }

// acquire returns the number of a lock that was free or LOW's.
func (l lock) acquire(ctx context.Context, lane schemas.Lane) (int64, error) {
	answer, err := eval.Once(ctx, l.rdb, lua.CoalesceAcquire, eval.Call{
		Key: l.key(), Args: []any{string(lane), 0, 0, 0, 0, harness.Timeout.Milliseconds(), time.Hour.Milliseconds()},
	}).Slice()
	if err != nil {
		return 0, err
	}
	number, _ := answer[1].(int64)
	if answer[0] != "PUBLISHED" && answer[0] != "UPGRADED" {
		return 0, fmt.Errorf("a lock that was to be had is %v", answer)
	}
	return number, nil
}

// run runs a script that returns 1 to who did it.
func (l lock) run(ctx context.Context, script lua.Script, args ...any) (bool, error) {
	n, err := eval.Once(ctx, l.rdb, script, eval.Call{Key: l.key(), Args: args}).Int()
	return n == 1, err
}

func (l lock) settle(ctx context.Context, number int64) (bool, error) {
	return l.run(ctx, lua.RequestSettle, number, 1, "", 0, time.Hour.Milliseconds(),
		schemas.SettledChannel(l.entity.Source), schemas.Settled{Entity: l.entity, Number: number}.Encode())
}

// cluster: the whole pipeline on a Redis Cluster.
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
		t.judge("nodes, of them used by entities", fmt.Sprintf("%d, %d", nodes.Load(), used.Load()), ">=3, all",
			nodes.Load() >= 3 && used.Load() == nodes.Load())
		t.judgeEqual("entities whose state is there", int(entities.Load()), 2000)
		if err != nil {
			return err
		}
		// What a permit takes is in one slot, so that it is one step on one node.
		there, err := rdb.Exists(ctx, "quota:{"+s.Source+"}:state").Result()
		t.judgeEqual("the limiter's state is there", int(there), 1)
		return err
	})
}
