//go:build unix

package limiter_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// run runs a limiter in this process until the test ends.
func run(t testing.TB, source string, reg prometheus.Registerer, addresses ...string) (*limiter.Limiter, context.Context) {
	t.Helper()
	rdb := connect(nil, addresses...)
	l, err := newLimiter(source, rdb, reg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = rdb.Close()
	})
	return l, ctx
}

func counted(t testing.TB, reg prometheus.Gatherer) counters {
	t.Helper()
	c, err := count(reg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ledger records when permits were spent.
type ledger struct {
	mu    sync.Mutex
	spent []time.Time
}

// spend spends the permit and records the time in one step, so the records are in order.
func (l *ledger) spend(p *limiter.Permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Spend() {
		l.spent = append(l.spent, time.Now())
	}
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.spent)
}

// maxPerSecond returns the maximum number of permits that were spent in a period of one second. The
// period includes its first and its last nanosecond.
func (l *ledger) maxPerSecond() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	most, from := 0, 0
	for to, at := range l.spent {
		for at.Sub(l.spent[from]) > time.Second {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

// node is one node of a cluster.
type node struct {
	*redis.Client
	address, id string
}

// owner returns the node that owns a hash slot, and another node to which the slot can be moved.
func owner(t *testing.T, nodes []node, slot int64) (from, to node) {
	t.Helper()
	shards, err := nodes[0].ClusterShards(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	id := ""
	for _, shard := range shards {
		for _, slots := range shard.Slots {
			if slots.Start <= slot && slot <= slots.End {
				id = shard.Nodes[0].ID // the primary is the shard's only node
			}
		}
	}
	for _, n := range nodes {
		if n.id == id {
			from = n
		} else {
			to = n
		}
	}
	if from.Client == nil {
		t.Fatalf("no node holds slot %d: %+v", slot, shards)
	}
	return from, to
}

func must(t *testing.T, n node, args ...any) {
	t.Helper()
	// The command must not end with the test's context: the hash slot must always be moved back.
	if err := n.Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v at %s: %v", args, n.address, err)
	}
}

// move migrates a hash slot like redis-cli. It calls `next` after each step.
func move(t *testing.T, nodes []node, slot int64, from, to node, next func(what string)) {
	t.Helper()
	must(t, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.id)
	must(t, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
	next("the slot is migrating, its keys are still here")
	host, port, _ := net.SplitHostPort(to.address)
	for {
		keys, err := from.ClusterGetKeysInSlot(context.Background(), int(slot), 10).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		for _, key := range keys {
			must(t, from, "MIGRATE", host, port, key, 0, 5000)
		}
	}
	next("its keys are there, its owner is still this node")
	must(t, to, "CLUSTER", "SETSLOT", slot, "NODE", to.id)
	must(t, from, "CLUSTER", "SETSLOT", slot, "NODE", to.id)
	for _, n := range nodes {
		must(t, n, "CLUSTER", "SETSLOT", slot, "NODE", to.id)
	}
	next("it has moved")
}

func TestLimiter_WorksDuringSlotMigration(t *testing.T) {
	addresses := servicetest.RedisClusterAddresses(t)
	var nodes []node
	for _, address := range addresses {
		n := node{Client: redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1}), address: address}
		t.Cleanup(func() { _ = n.Close() })
		var err error
		if n.id, err = n.Do(t.Context(), "CLUSTER", "MYID").Text(); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	source := servicetest.Name("nexon")
	slot, err := nodes[0].ClusterKeySlot(t.Context(), "quota:{"+source+"}:state").Result()
	if err != nil {
		t.Fatal(err)
	}
	from, to := owner(t, nodes, slot)
	t.Cleanup(func() { // after a failed test too, no hash slot may stay in migration
		must(t, from, "CLUSTER", "SETSLOT", slot, "STABLE")
		must(t, to, "CLUSTER", "SETSLOT", slot, "STABLE")
	})

	reg := prometheus.NewRegistry()
	l, ctx := run(t, source, reg, addresses...)
	acquiring, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	var spent ledger
	for i := range 60 {
		lane := []schemas.Lane{schemas.High, schemas.Low, schemas.Low}[i%3]
		all.Go(func() {
			for {
				p, err := l.Acquire(acquiring, lane, limiter.Call{})
				if err != nil {
					return
				}
				spent.spend(p)
			}
		})
	}
	flows := func(what string) {
		t.Helper()
		before, began := spent.count(), time.Now()
		servicetest.WaitFor(t, waitTimeout, "permits when "+what, func() bool { return spent.count() >= before+200 })
		t.Logf("%s: 200 permits in %v, %v calls failed so far", what, time.Since(began).Round(ms), counted(t, reg)[failuresTotal])
	}
	flows("nothing has moved")
	move(t, nodes, slot, from, to, flows)
	move(t, nodes, slot, to, from, flows)

	failures := counted(t, reg)[failuresTotal]
	flows("all is as it was")
	if now := counted(t, reg)[failuresTotal]; now > failures {
		t.Errorf("%v calls to Redis failed after the slot had moved", now-failures)
	}
	if most := spent.maxPerSecond(); most > 497 {
		t.Errorf("got %d permits in a second, want at most the limit", most)
	} else {
		t.Logf("%d permits, at most %d in a second", spent.count(), most)
	}
}
