package lua_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// migrating is a hash slot of a Redis Cluster during its migration.
type migrating struct {
	t        *testing.T
	slot     int64
	from, to *redis.Client
}

func (m migrating) do(node *redis.Client, args ...any) {
	m.t.Helper()
	// The command must not end with the test's context: the migration must always be completed.
	if err := node.Do(context.Background(), args...).Err(); err != nil {
		m.t.Fatalf("%v at %v: %v", args, node, err)
	}
}

// migrate starts the migration of a key's hash slot. The migration is cancelled when the test
// ends.
func migrate(t *testing.T, key string) migrating {
	t.Helper()
	m := migrating{t: t}
	for _, address := range servicetest.RedisClusterAddresses(t) {
		node := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
		t.Cleanup(func() { _ = node.Close() })
		err := node.Exists(t.Context(), key).Err()
		switch {
		case err == nil:
			m.from = node
		case strings.HasPrefix(err.Error(), "MOVED"):
			m.to = node
		default:
			t.Fatal(err)
		}
	}
	if m.from == nil || m.to == nil {
		t.Fatal("no node has the slot, or no other")
	}
	var err error
	if m.slot, err = m.from.ClusterKeySlot(t.Context(), key).Result(); err != nil {
		t.Fatal(err)
	}
	id := func(node *redis.Client) string {
		s, err := node.Do(t.Context(), "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	m.do(m.to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", id(m.from))
	m.do(m.from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", id(m.to))
	t.Cleanup(func() {
		for _, node := range []*redis.Client{m.from, m.to} {
			if err := node.Do(context.Background(), "CLUSTER", "SETSLOT", m.slot, "STABLE").Err(); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

// move moves one key to the other node. The key is deleted when the test ends.
func (m migrating) move(key string) {
	m.t.Helper()
	host, port, _ := net.SplitHostPort(m.to.Options().Addr)
	m.do(m.from, "MIGRATE", host, port, key, 0, 5000)
	m.t.Cleanup(func() {
		asking := m.to.Conn()
		defer func() { _ = asking.Close() }()
		_ = asking.Do(context.Background(), "ASKING").Err() // if ASKING fails, the next command fails too
		if err := asking.Del(context.Background(), key).Err(); err != nil {
			m.t.Error(err)
		}
	})
}

func TestADRBuckets_FailDuringSlotMigration(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: servicetest.RedisClusterAddresses(t), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	a := newBuckets(t, rdb)
	a.admits(0, false)
	m := migrate(t, a.tag+":all")
	ask := func() error {
		return m.from.Eval(t.Context(), adrBuckets, []string{a.tag + ":all", a.tag + ":low"},
			450, 350, 450, 350, time.Now().UnixMilli(), 1).Err()
	}
	if err := ask(); err != nil {
		t.Fatalf("before a key has moved: %v", err)
	}
	m.move(a.tag + ":all:ts") // an undeclared key moves first; the declared keys are still on the old node
	switch err := ask(); {
	case err == nil:
		t.Errorf("ADR: the script runs without a key that it doesn't declare: %s", gone)
	case strings.HasPrefix(err.Error(), "ASK"), strings.HasPrefix(err.Error(), "MOVED"):
		t.Errorf("ADR: the client is redirected (%v): %s", err, gone)
	default:
		t.Log("ADR:", err) // the error is not a redirection, so a client cannot follow it
	}
}

func TestAcquire_RunsDuringSlotMigration(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: servicetest.RedisClusterAddresses(t)}) // this client follows redirections of the cluster
	t.Cleanup(func() { _ = rdb.Close() })
	b := newBucket(t, rdb)
	b.awake()
	m := migrate(t, b.key)
	if g := b.acquire(3, 0); len(g.high) != 3 {
		t.Errorf("while its key is still here: %+v", g)
	}
	m.move(b.key)
	reply, err := b.run(3, 0, "")
	if err != nil || reply[0] != 0 && reply[0] != 3 {
		t.Errorf("when its key is there: %v, %v", reply, err)
	}
}
