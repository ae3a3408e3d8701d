package status

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// heartbeatTTL is the time after its last heartbeat for which a scheduler still counts as live.
const heartbeatTTL = 30 * time.Second

// maxHeartbeats is the maximum number of schedulers that are shown.
const maxHeartbeats = 100

// Heartbeat describes a running scheduler. Age is the time since its last heartbeat, by the clock of
// Redis.
type Heartbeat struct {
	Process string
	Age     time.Duration
}

func heartbeatsKey(source string) string { return "schedulers:{" + source + "}" }

// WriteHeartbeat writes the heartbeat of a scheduler, and returns its share of the rate: one
// divided by the number of live schedulers of the source. After a scheduler starts, all schedulers
// together exceed the rate until their next heartbeats. After a scheduler crashes, the other
// schedulers use less than the rate until heartbeatTTL has passed.
func WriteHeartbeat(ctx context.Context, rdb redis.UniversalClient, source, process string) (share float64, err error) {
	key := heartbeatsKey(source)
	now, err := rdb.Time(ctx).Result() // the time of Redis, because the clocks of hosts may differ
	if err != nil {
		return 0, fmt.Errorf("read the time from Redis: %w", err)
	}
	pipe := rdb.TxPipeline()
	pipe.ZAdd(ctx, key, redis.Z{Score: float64(now.UnixMilli()), Member: process})
	pipe.ZRemRangeByScore(ctx, key, "-inf", strconv.FormatInt(now.Add(-heartbeatTTL).UnixMilli(), 10))
	count := pipe.ZCard(ctx, key)
	pipe.Expire(ctx, key, 2*heartbeatTTL)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, fmt.Errorf("count the schedulers of %s: %w", source, err)
	}
	return 1 / float64(max(1, count.Val())), nil
}

// ReadHeartbeats returns the live schedulers of a source, the one with the newest heartbeat first.
func ReadHeartbeats(ctx context.Context, rdb redis.UniversalClient, source string) ([]Heartbeat, error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("read the time from Redis: %w", err)
	}
	found, err := rdb.ZRevRangeByScoreWithScores(ctx, heartbeatsKey(source), &redis.ZRangeBy{
		Max: "+inf", Min: strconv.FormatInt(now.Add(-heartbeatTTL).UnixMilli(), 10), Count: maxHeartbeats,
	}).Result()
	if err != nil {
		return nil, fmt.Errorf("read the schedulers of %s: %w", source, err)
	}
	var all []Heartbeat
	for _, z := range found {
		all = append(all, Heartbeat{Process: fmt.Sprint(z.Member), Age: max(0, now.Sub(time.UnixMilli(int64(z.Score))))})
	}
	return all, nil
}
