package lua_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// newEvent returns the event that the source was never called before `at` (us).
func newEvent(at int64) string { return fmt.Sprintf("new %d", at) }

func TestNewSource_GrantsSlotsAtOnce(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.more = windowLog(second, 50, 40)
		if g := b.acquireAfter(5, 5, newEvent(b.look()[0])); len(g.high) != 5 || len(g.low) != 5 {
			t.Errorf("a source without earlier calls: %+v, want 10 slots", g)
		}
	})
}

func TestNewSource_BeginsQuietWithoutProof(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(b bucket)
		age    int64 // age of the time in the event
	}{
		"the time is older than the horizon": {func(bucket) {}, horizon},
		"the time is in the future":          {func(bucket) {}, -1},
		"another process was faster":         {func(b bucket) { b.acquire(1, 1) }, 0},
		"the state is malformed":             {func(b bucket) { b.setState("garbled") }, 0},
		"the state is of another server":     {func(b bucket) { b.awake(); b.acquire(1, 1); b.failOver() }, 0},
	} {
		simulated(t, func(b bucket, c2 *clock) {
			b.more = windowLog(second, 50, 40)
			c.before(b)
			if g := b.acquireAfter(5, 5, newEvent(c2.us()-c.age)); len(g.all()) > 0 {
				t.Errorf("%s: %+v, want a quiet period", name, g)
			}
		})
	}
}

func TestNewSource_KeepsTheLimit(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.more = windowLog(second, 50, 40)
		all := b.acquireAfter(200, 200, newEvent(c.us())).all()
		high, low := saturate(b, c, 3*second)
		all = append(append(all, high...), low...)
		if got := mostInWindow(all, second-1); got > 50 {
			t.Errorf("%d slots in a second, the limit is 50", got)
		}
		b.setState("garbled") // a later loss is a loss
		if g := b.acquire(1, 1); len(g.all()) > 0 {
			t.Errorf("after a loss: %+v, want a quiet period", g)
		}
	})
}
