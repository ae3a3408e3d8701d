package servicetest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// RedisHook is a redis.Hook that a client calls with each command, and with the commands of each
// pipeline. It can count, delay, hold, answer or fail them. `send` sends them to Redis. If RedisHook
// returns an error without a call of send, the commands fail with this error. A client also calls it with
// the commands that prepare a connection, such as hello. It may be called concurrently.
type RedisHook func(ctx context.Context, commands []redis.Cmder, send func(context.Context) error) error

// DialHook implements redis.Hook.
func (RedisHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h RedisHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		return h(ctx, []redis.Cmder{command}, func(ctx context.Context) error { return next(ctx, command) })
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h RedisHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		sent := false
		err := h(ctx, commands, func(ctx context.Context) error { sent = true; return next(ctx, commands) })
		if !sent && err != nil { // go-redis sets the error of a single command itself
			for _, c := range commands {
				c.SetErr(err)
			}
		}
		return err
	}
}
