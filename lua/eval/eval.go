// Package eval runs the scripts of package lua. It never repeats a script whose outcome is unknown;
// the Redis client would repeat it by default. A repeated coalesce_acquire would find the pending
// lock of its first run and report that lock as the lock of another request.
package eval

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
)

// Call is one run of a script with one key, and further keys of the same hash slot.
type Call struct {
	Key  string
	More []string
	Args []any
}

// once is a command that is not sent again after a network error. Redirections in a cluster are
// followed, because they mean that the script did not run.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// onceInts is a command that is not sent again after a network error, like the type once. It is for
// scripts that return only integers, and reads them without one allocation for each integer.
type onceInts struct{ *redis.IntSliceCmd }

func (onceInts) NoRetry() bool { return true }

func (c Call) line(command, script string) []any {
	line := append(make([]any, 0, 4+len(c.More)+len(c.Args)), command, script, 1+len(c.More), c.Key)
	for _, key := range c.More {
		line = append(line, key)
	}
	return append(line, c.Args...)
}

func evalsha(ctx context.Context, s lua.Script, c Call) once {
	return once{redis.NewCmd(ctx, c.line("evalsha", s.SHA1)...)}
}

func eval(ctx context.Context, s lua.Script, c Call) once {
	return once{redis.NewCmd(ctx, c.line("eval", s.Source)...)}
}

// Once runs s in one round trip, or in two if Redis does not know the script yet.
func Once(ctx context.Context, rdb redis.UniversalClient, s lua.Script, c Call) *redis.Cmd {
	cmd := evalsha(ctx, s, c)
	if err := rdb.Process(ctx, cmd); redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = eval(ctx, s, c)
		_ = rdb.Process(ctx, cmd) // the error is ignored here, because cmd contains it too
	}
	return cmd.Cmd
}

// Ints runs s like Once, for a script that returns only integers, and returns the integers.
func Ints(ctx context.Context, rdb redis.UniversalClient, s lua.Script, c Call) ([]int64, error) {
	cmd := onceInts{redis.NewIntSliceCmd(ctx, c.line("evalsha", s.SHA1)...)}
	if err := rdb.Process(ctx, cmd); redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = onceInts{redis.NewIntSliceCmd(ctx, c.line("eval", s.Source)...)}
		_ = rdb.Process(ctx, cmd) // the error is ignored here, because cmd contains it too
	}
	return cmd.Result()
}

// Each runs s for every call in pipelines, one per cluster node. It returns the results in the
// order of the calls; each result has its own error.
func Each(ctx context.Context, rdb redis.UniversalClient, s lua.Script, calls []Call) []*redis.Cmd {
	results := make([]*redis.Cmd, len(calls))
	all := make([]int, len(calls))
	for i := range calls {
		all[i] = i
	}
	pipelined(ctx, rdb, s, calls, all, evalsha, results)
	var unknown []int
	for i, r := range results {
		if redis.HasErrorPrefix(r.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		pipelined(ctx, rdb, s, calls, unknown, eval, results)
	}
	return results
}

func pipelined(ctx context.Context, rdb redis.UniversalClient, s lua.Script, calls []Call, which []int,
	command func(context.Context, lua.Script, Call) once, results []*redis.Cmd,
) {
	pipe := rdb.Pipeline()
	for _, i := range which {
		cmd := command(ctx, s, calls[i])
		results[i] = cmd.Cmd
		_ = pipe.Process(ctx, cmd) // Process only adds cmd to the pipeline; Exec sends it
	}
	_, _ = pipe.Exec(ctx) // each command contains its own error
}
