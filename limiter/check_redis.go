package limiter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrEvictionEnabled means that Redis can evict the limiter's state if memory is short. Then the
// upstream could receive more calls than its limit.
var ErrEvictionEnabled = errors.New("redis can evict keys, among them the count of calls; set maxmemory-policy to noeviction")

// CheckRedis returns ErrEvictionEnabled if Redis can evict keys, or an error if Redis does not
// answer. A server that refuses INFO passes the check.
func CheckRedis(ctx context.Context, rdb redis.UniversalClient) error {
	check := func(ctx context.Context, rdb redis.Cmdable) error {
		memory, err := rdb.Info(ctx, "memory").Result()
		if err != nil {
			if _, refused := errors.AsType[redis.Error](err); refused {
				return nil // Redis answers, but does not allow INFO
			}
			return fmt.Errorf("read the memory settings of Redis: %w", err)
		}
		for line := range strings.Lines(memory) {
			policy, found := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:")
			if found && policy != "noeviction" {
				return fmt.Errorf("maxmemory-policy %s: %w", policy, ErrEvictionEnabled)
			}
		}
		return nil
	}
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return check(ctx, node) })
	}
	return check(ctx, rdb)
}
