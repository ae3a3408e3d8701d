//go:build unix

package lua_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// After a restart, a server has another replication ID, even if it keeps its data. Locks from before
// the restart then cover no requests.
func TestRestart_RepeatsAtMostOneRequest(t *testing.T) {
	for name, c := range map[string]struct {
		options []string
		keep    func(e entity)
	}{
		"RDB": {nil, func(e entity) {
			if err := e.rdb.(*redis.Client).Save(e.t.Context()).Err(); err != nil {
				e.t.Fatal(err)
			}
		}},
		"AOF": {[]string{"--appendonly", "yes", "--appendfsync", "always"}, func(entity) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := servicetest.PrivateRedis(t, c.options...)
			e := newEntity(t, s.Client)
			first := e.published(high)
			e.mustAcquire(high, "ALREADY_PROCESSING")
			c.keep(e)
			s.Kill()
			s.Start()
			if lock := e.field("lock"); lock == "" {
				t.Fatal("the lock was not kept")
			}
			again := e.published(high)
			for range 3 {
				if v := e.acquire(high); v.outcome != "ALREADY_PROCESSING" || v.number != again {
					t.Errorf("after the restart and a request: %+v, want what %d covers", v, again)
				}
			}
			// The fetch of the first record satisfies both requests.
			own := e.mustBegin(first, "HIGH")
			if !e.settle(own, true, "", 0) || e.peek(again, "HIGH", 0) != "SATISFIED" {
				t.Errorf("a fetch %d leaves the request %d unsatisfied", own, again)
			}
		})
	}
}

// If a server does not show its ID, the scripts assume that all locks were set by this server.
func TestServerID_MissingStillCoalesces(t *testing.T) {
	s := servicetest.PrivateRedis(t)
	e := newEntity(t, s.Client)
	if err := s.Client.Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	n := e.published(high)
	if server := e.field("server"); server != "" {
		t.Fatalf("got the server ID %q, want none", server)
	}
	if v := e.acquire(high); v.outcome != "ALREADY_PROCESSING" || v.number != n {
		t.Errorf("%+v", v)
	}
}
