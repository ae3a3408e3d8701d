package servicetest

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestRedisHook_FailsOnlyChosenCommands(t *testing.T) {
	rdb, server := MiniRedis(t)
	wantErr := errors.New("failed by the hook")
	rdb.AddHook(RedisHook(func(ctx context.Context, commands []redis.Cmder, send func(context.Context) error) error {
		if commands[0].Name() == "incr" {
			return wantErr
		}
		return send(ctx)
	}))
	if err := rdb.Incr(t.Context(), "n").Err(); !errors.Is(err, wantErr) {
		t.Errorf("incr: got %v, want %v", err, wantErr)
	}
	pipe := rdb.Pipeline()
	incr, set := pipe.Incr(t.Context(), "n"), pipe.Set(t.Context(), "n", 1, 0)
	if _, err := pipe.Exec(t.Context()); !errors.Is(err, wantErr) || !errors.Is(incr.Err(), wantErr) || !errors.Is(set.Err(), wantErr) {
		t.Errorf("pipeline: got %v, incr: %v, set: %v, want %v three times", err, incr.Err(), set.Err(), wantErr)
	}
	if server.Exists("n") {
		t.Error("the failed commands were sent to redis")
	}
	set, push := pipe.Set(t.Context(), "n", 1, 0), pipe.LPush(t.Context(), "n", 1)
	if _, err := pipe.Exec(t.Context()); set.Err() != nil || push.Err() == nil || !errors.Is(err, push.Err()) {
		t.Errorf("pipeline that is sent: got %v, set: %v, lpush: %v, want an error of lpush only", err, set.Err(), push.Err())
	}
}
