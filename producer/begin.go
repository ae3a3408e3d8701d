package producer

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/schemas"
)

const (
	// maxBeginPipelines is how many pipelines of request_begin run at once. Calls that arrive
	// meanwhile share the next pipeline.
	maxBeginPipelines = 2
	// maxBeginCalls is the maximum number of calls in one pipeline.
	maxBeginCalls = 128
)

// begins runs request_begin for concurrent callers in shared pipelines. Under load this takes a
// fraction of the system calls, in this process and in Redis. Without load each call is sent at once.
type begins struct {
	rdb redis.UniversalClient

	mu        sync.Mutex
	waiting   []beginCall
	pipelines int // number of pipelines in flight
}

type beginCall struct {
	call  eval.Call
	reply chan<- *redis.Cmd // buffered channel for one reply
}

// run runs the script once for the call. If ctx ends first, run returns the cause, and the script may
// still run.
func (b *begins) run(ctx context.Context, call eval.Call) (*redis.Cmd, error) {
	reply := make(chan *redis.Cmd, 1)
	b.mu.Lock()
	b.waiting = append(b.waiting, beginCall{call, reply})
	start := b.pipelines < maxBeginPipelines
	if start {
		b.pipelines++
	}
	b.mu.Unlock()
	if start {
		// The pipeline has calls of other callers too, so it outlives this caller's context.
		go b.drain(context.WithoutCancel(ctx))
	}
	select {
	case cmd := <-reply:
		return cmd, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// drain runs pipelines until no call waits.
func (b *begins) drain(ctx context.Context) {
	for {
		b.mu.Lock()
		n := min(len(b.waiting), maxBeginCalls)
		if n == 0 {
			b.pipelines--
			b.mu.Unlock()
			return
		}
		batch := b.waiting[:n:n]
		if b.waiting = b.waiting[n:]; len(b.waiting) == 0 {
			b.waiting = nil // drops the array, so that its calls can be garbage collected
		}
		b.mu.Unlock()
		calls := make([]eval.Call, n)
		for i, c := range batch {
			calls[i] = c.call
		}
		for i, cmd := range runScript(ctx, b.rdb, lua.RequestBegin, calls) {
			batch[i].reply <- cmd
		}
	}
}

// Begin decides again whether the fetch for a request is needed, directly before the fetch is
// sent. If it is, Begin returns the fetch's own number, which becomes the version of the
// snapshot. If Begin is called again for the same fetch, the number is higher.
func (c *Coalescer) Begin(ctx context.Context, r schemas.UpdateRequest, stored int64) (schemas.Verdict, int64, error) {
	cmd, err := c.begins.run(ctx, eval.Call{
		Key: key(r.Entity), Args: []any{r.Version, string(r.Lane), stored, hashTTL.Milliseconds()},
	})
	var reply []any
	if err == nil {
		reply, err = cmd.Slice()
	}
	if err != nil {
		return "", 0, fmt.Errorf("begin the fetch of %s: %w", r.Entity, err)
	}
	if len(reply) != 2 {
		return "", 0, fmt.Errorf("request_begin returned %d values, not 2", len(reply))
	}
	verdict, _ := reply[0].(string)
	number, _ := reply[1].(int64)
	return schemas.Verdict(verdict), number, nil
}
