package observe

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"
)

// RedisLogger writes the messages of go-redis to a log at level DEBUG. go-redis has no levels, and
// repeats a message for each failed connection, so none of its messages is a warning here.
type RedisLogger struct{ log *slog.Logger }

// NewRedisLogger returns a logger that writes to log.
func NewRedisLogger(log *slog.Logger) RedisLogger { return RedisLogger{log} }

// Printf implements the logger interface of go-redis.
func (l RedisLogger) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis client message", "detail", fmt.Sprintf(format, args...))
	}
}

// KafkaLogger writes the messages of a franz-go client to a log at level DEBUG. It drops franz-go's
// own debug messages, which are several for each request to a broker.
type KafkaLogger struct{ log *slog.Logger }

// NewKafkaLogger returns a logger that writes to log.
func NewKafkaLogger(log *slog.Logger) KafkaLogger { return KafkaLogger{log} }

// Level implements kgo.Logger.
func (l KafkaLogger) Level() kgo.LogLevel {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelNone
}

// Log implements kgo.Logger. The attribute `severity` is franz-go's level of the message.
func (l KafkaLogger) Log(level kgo.LogLevel, message string, attrs ...any) {
	l.log.Debug("kafka client message", "severity", level.String(), "detail", message, slog.Group("kafka", attrs...))
}
