//go:build unix

package lua_test

import (
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
)

func TestADRBuckets_AreFullAgainAfterARestart(t *testing.T) {
	s := servicetest.PrivateRedis(t)
	a, began := newBuckets(t, s.Client), time.Now()
	admitted := a.drain(time.Since(began), 450)
	s.Kill()
	s.Start()
	admitted += a.drain(time.Since(began), 450)
	if took := time.Since(began); admitted < 890 {
		t.Errorf("ADR: %d in %v: %s", admitted, took, gone)
	} else {
		t.Logf("ADR: %d in %v", admitted, took)
	}
}

func TestState_RestartBeginsQuietAndKeepsABackoff(t *testing.T) {
	kept := []string{"--appendonly", "yes", "--appendfsync", "always"}
	for name, c := range map[string]struct {
		options    []string
		happens    func(s *servicetest.RedisServer) *servicetest.RedisServer
		backingOff bool // after the restart or failover, the state must still contain the backoff
	}{
		"a restart that loses all": {nil, func(s *servicetest.RedisServer) *servicetest.RedisServer {
			s.Kill()
			s.Start()
			return s
		}, false},
		"a restart that keeps the state": {kept, func(s *servicetest.RedisServer) *servicetest.RedisServer {
			s.Kill()
			s.Start()
			return s
		}, true},
		"a failover": {nil, func(s *servicetest.RedisServer) *servicetest.RedisServer {
			r := s.Replica()
			r.StopReplication()
			s.Kill()
			r.Promote()
			return r
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := servicetest.PrivateRedis(t, c.options...)
			b := newBucket(t, s.Client)
			b.awake()
			backingOff := b
			backingOff.key += "2"
			backingOff.awake()
			sent := backingOff.acquire(1, 1).now
			backingOff.acquireAfter(0, 0, backoffEvent(60*second, second, sent))
			if g := b.acquire(20, 20); len(g.all()) < 25 {
				t.Fatalf("before: %+v", g)
			}

			b.rdb = c.happens(s).Client
			backingOff.rdb = b.rdb
			g := b.acquire(20, 20)
			if len(g.all()) > 0 || g.refusalHigh != refusedByStateLoss || g.refusalLow != refusedByStateLoss || g.backHigh < quiet-horizon-second/2 {
				t.Errorf("after: %+v", g)
			}
			g = backingOff.acquire(1, 1)
			if got := g.backHigh == 10*second; len(g.all()) > 0 || got != c.backingOff {
				t.Errorf("with a backoff of a minute: %+v", g)
			}
		})
	}
}
