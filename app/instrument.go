package app

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/IBM/pgxpoolprometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/extra/redisprometheus/v9"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/observe"
)

// kafkaClient returns the options of the Kafka client with this name. The client's metrics are
// exported to Prometheus and not pushed to the brokers (KIP-714).
func (p parts) kafkaClient(name string) []kgo.Opt {
	return append(slices.Clone(p.kafka), kgo.ClientID("freshet-"+name), kgo.DisableClientMetrics(), kgo.WithLogger(observe.NewKafkaLogger(p.log)), kgo.WithHooks(kprom.NewMetrics("kafka_client",
		kprom.Registerer(p.reg), kprom.WithStaticLabel(prometheus.Labels{"client": name}))))
}

// registerPoolMetrics registers the metrics of the PostgreSQL connection pool.
func registerPoolMetrics(pool pgxpoolprometheus.Stater, reg prometheus.Registerer) {
	reg.MustRegister(pgxpoolprometheus.NewCollector(pool, nil))
}

// registerRedisMetrics registers the metrics of the Redis connection pool and of the duration of
// commands.
func registerRedisMetrics(rdb redis.UniversalClient, reg prometheus.Registerer) {
	times := &redisTimingHook{
		duration: prometheus.NewHistogramVec(observe.Histogram("redis_command_duration_seconds",
			"Duration of round trips to Redis, by command; scripts by their name, and pipelines as pipeline.",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1), []string{"command"}),
		scripts: map[string]string{},
	}
	for _, s := range lua.All {
		times.scripts[s.SHA1] = s.Name
	}
	reg.MustRegister(redisprometheus.NewCollector("", "redis", rdb), times.duration)
	rdb.AddHook(times)
}

// redisTimingHook is a redis.Hook that measures the duration of commands.
type redisTimingHook struct {
	duration *prometheus.HistogramVec
	scripts  map[string]string // names of the scripts, by the SHA-1 of the script's text
}

// DialHook implements redis.Hook.
func (*redisTimingHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

// ProcessHook implements redis.Hook.
func (t *redisTimingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		started := time.Now()
		err := next(ctx, cmd)
		if !isHandshake(cmd) {
			t.duration.WithLabelValues(t.label(cmd)).Observe(time.Since(started).Seconds())
		}
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (t *redisTimingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		started := time.Now()
		err := next(ctx, cmds)
		if len(cmds) == 0 || isHandshake(cmds[0]) {
			return err
		}
		t.duration.WithLabelValues("pipeline").Observe(time.Since(started).Seconds())
		return err
	}
}

// isHandshake reports whether a command belongs to the handshake of a new connection. The durations
// of such commands are not measured.
func isHandshake(cmd redis.Cmder) bool {
	switch cmd.Name() {
	case "hello", "client", "auth", "select", "readonly":
		return true
	}
	return false
}

// label returns the name of a command, or of the script that it runs.
func (t *redisTimingHook) label(cmd redis.Cmder) string {
	name := cmd.Name()
	if name != "evalsha" {
		return name
	}
	if args := cmd.Args(); len(args) > 1 {
		sha, _ := args[1].(string)
		if script, known := t.scripts[sha]; known {
			return script
		}
	}
	return name
}
