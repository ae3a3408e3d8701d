package app

import (
	"context"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
)

// connectionInterval is the time between two checks of the connections to Redis and Kafka.
// connectionTimeout is the time limit of each check. This limit is longer than pingTimeout, the limit of
// a health check, so that a slow response of a busy machine is not logged as an outage.
const connectionInterval, connectionTimeout = 10 * time.Second, 5 * time.Second

var (
	redisUnreachable = observe.Condition{
		Event: "redis_unreachable", Failing: "redis unreachable; check redis.addresses", Recovered: "redis reachable",
	}
	kafkaUnreachable = observe.Condition{
		Event: "kafka_unreachable", Failing: "kafka unreachable; check kafka.brokers", Recovered: "kafka reachable",
	}
)

// watchConnections logs when Redis or Kafka becomes unreachable and when it is reachable again,
// until ctx ends. It also logs an outage that exists at the start: the other parts of a role may
// not notice it.
func (p parts) watchConnections(ctx context.Context) error {
	var conditions observe.Conditions
	check := func(ctx context.Context) { p.checkConnections(ctx, &conditions) }
	check(ctx)
	poll.Every(ctx, connectionInterval, check)
	return nil
}

func (p parts) checkConnections(ctx context.Context, conditions *observe.Conditions) {
	for cond, ping := range map[observe.Condition]func(context.Context) error{
		redisUnreachable: func(ctx context.Context) error { return p.rdb.Ping(ctx).Err() },
		kafkaUnreachable: p.client.Ping,
	} {
		limit, cancel := context.WithTimeout(ctx, connectionTimeout)
		err := ping(limit)
		cancel()
		if ctx.Err() == nil {
			conditions.Record(p.log, cond, err)
		}
	}
}
