package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// holdScripts holds the scripts of a client, alone or in pipelines, until `release` is closed. `held`
// counts the single scripts and the pipelines.
func holdScripts(rdb redis.UniversalClient) (held *atomic.Int64, release chan struct{}) {
	held, release = &atomic.Int64{}, make(chan struct{})
	rdb.AddHook(servicetest.RedisHook(func(ctx context.Context, commands []redis.Cmder, send func(context.Context) error) error {
		if commands[0].Name() == "evalsha" {
			held.Add(1)
			<-release
		}
		return send(ctx)
	}))
	return held, release
}

func TestBegin_SharesPipelines(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	c := NewCoalescer(rdb)
	warm := schemas.UpdateRequest{Entity: schemas.Entity{Source: "s", Facet: "f", Key: "warm"}, Lane: schemas.High}
	if _, _, err := c.Begin(t.Context(), warm, 0); err != nil { // this first call stores the script in Redis
		t.Fatal(err)
	}
	held, release := holdScripts(rdb)
	type result struct {
		verdict schemas.Verdict
		number  int64
		err     error
	}
	const callers = 20
	results := make([]result, callers)
	given, giveUp := context.WithCancelCause(t.Context())
	var all sync.WaitGroup
	for i := range callers {
		ctx := t.Context()
		if i == callers-1 {
			ctx = given
		}
		all.Go(func() {
			e := schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprint("k", i)}
			results[i].verdict, results[i].number, results[i].err = c.Begin(ctx, schemas.UpdateRequest{Entity: e, Lane: schemas.High}, int64(1e15)+int64(i))
		})
		if i < maxBeginPipelines {
			servicetest.WaitFor(t, 5*time.Second, "the pipeline runs", func() bool { return held.Load() == int64(i+1) })
		}
	}
	servicetest.WaitFor(t, 5*time.Second, "all other calls wait", func() bool {
		c.begins.mu.Lock()
		defer c.begins.mu.Unlock()
		return len(c.begins.waiting) == callers-maxBeginPipelines
	})
	giveUp(errGivenUp)
	close(release)
	all.Wait()
	for i, r := range results[:callers-1] {
		// A number is above the stored version of its own entity, so a mix-up of replies is visible.
		if want := int64(1e15) + int64(i) + 1; r.err != nil || r.verdict != schemas.Proceed || r.number != want {
			t.Errorf("caller %d: got %+v, want proceed with number %d", i, r, want)
		}
	}
	if err := results[callers-1].err; err != nil && !errors.Is(err, errGivenUp) {
		t.Errorf("caller whose context ended: got %v, want %v or a number", err, errGivenUp)
	}
	if got := held.Load(); got > maxBeginPipelines+2 {
		t.Errorf("commands and pipelines for %d callers: got %d, want at most %d", callers, got, maxBeginPipelines+2)
	}
}

var errGivenUp = errors.New("given up by the test")

func TestBegin_EndsWithItsContext(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	held, release := holdScripts(rdb)
	defer close(release)
	ctx, giveUp := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := NewCoalescer(rdb).Begin(ctx, schemas.UpdateRequest{Entity: schemas.Entity{Source: "s", Facet: "f", Key: "k"}}, 0)
		ended <- err
	}()
	servicetest.WaitFor(t, 5*time.Second, "the command runs", func() bool { return held.Load() == 1 })
	giveUp(errGivenUp)
	if err := <-ended; !errors.Is(err, errGivenUp) {
		t.Errorf("got %v, want %v", err, errGivenUp)
	}
}
