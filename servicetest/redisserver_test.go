//go:build unix

package servicetest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// value returns the value of the Redis key named "key", or the text of the error.
func value(t *testing.T, s *RedisServer) string {
	t.Helper()
	v, err := s.Client.Get(t.Context(), "key").Result()
	if err != nil {
		return err.Error()
	}
	return v
}

func set(t *testing.T, s *RedisServer, v string) {
	t.Helper()
	if err := s.Client.Set(t.Context(), "key", v, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestPrivateRedis_KeepsAppendOnlyFileAcrossKill(t *testing.T) {
	s := PrivateRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	set(t, s, "kept")
	s.Kill()
	s.Start()
	if v := value(t, s); v != "kept" {
		t.Errorf("value after a kill: got %s, want kept", v)
	}
	s.Kill()
	s.DeleteData()
	s.Start()
	if v := value(t, s); v != redis.Nil.Error() {
		t.Errorf("value after DeleteData: got %s, want none", v)
	}
}

func TestReplica_LosesLastWritesAndIsPromoted(t *testing.T) {
	s := PrivateRedis(t)
	set(t, s, "before")
	r := s.Replica()
	r.StopReplication()
	set(t, s, "after")
	s.Kill()
	r.Promote()
	if v := value(t, r); v != "before" {
		t.Errorf("value in the promoted replica: got %q, want before", v)
	}
	set(t, r, "accepted by a primary")
}

func TestPrivateRedis_FreezeStopsReplies(t *testing.T) {
	s := PrivateRedis(t)
	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Client.Ping(ctx).Err(); err == nil {
		t.Error("ping of a frozen Redis: got no error, want a timeout")
	}
	s.Continue()
	if err := s.Client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}
