package lua_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/servicetest"
)

// takeTokens runs client_take for a bucket of 120 tokens an hour.
func takeTokens(t *testing.T, rdb redis.UniversalClient, key string, n int) time.Duration {
	t.Helper()
	us, err := eval.Once(t.Context(), rdb, lua.ClientTake, eval.Call{Key: key, Args: []any{120, time.Hour.Microseconds(), n}}).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

func TestClientTake_TakesAllOrNothing(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		key := servicetest.Name("requests")
		for _, step := range []struct {
			n    int
			want time.Duration // until there are enough tokens; a token is added each 30 s
		}{{100, 0}, {30, 5 * time.Minute}, {20, 0}, {1, 30 * time.Second}, {1, 30 * time.Second}, {500, time.Hour}} {
			// The bucket gains tokens while the test runs, so the wait may be shorter by its duration.
			if got := takeTokens(t, rdb, key, step.n); got > step.want || got < step.want-20*time.Second {
				t.Errorf("take %d: got a wait of %v, want %v", step.n, got, step.want)
			}
		}
		if got := rdb.PTTL(t.Context(), key).Val(); got > time.Hour || got < 59*time.Minute {
			t.Errorf("expiry of an empty bucket: got %v, want the hour until it is full", got)
		}
	})
}

func TestClientTake_ReplacesDamagedBuckets(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		key := servicetest.Name("requests")
		for name, damage := range map[string]func() error{
			"another type":    func() error { return rdb.LPush(t.Context(), key, "x").Err() },
			"no numbers":      func() error { return rdb.HSet(t.Context(), key, "left", "x", "at", "y").Err() },
			"larger capacity": func() error { return rdb.HSet(t.Context(), key, "left", "5000", "at", "1").Err() },
		} {
			rdb.Del(t.Context(), key)
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			if got := takeTokens(t, rdb, key, 120); got != 0 {
				t.Errorf("%s: got a wait of %v, want a full bucket", name, got)
			}
			if got := takeTokens(t, rdb, key, 60); got == 0 {
				t.Errorf("%s: got more than 120 tokens, want 120", name)
			}
		}
	})
}
