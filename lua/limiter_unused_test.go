package lua_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// unusedEvent is the event that the source was never called.
const unusedEvent = "unused"

func TestUnusedSource_GrantsSlotsAtOnce(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.more = windowLog(second, 50, 40)
		if g := b.acquireAfter(5, 5, unusedEvent); len(g.high) != 5 || len(g.low) != 5 {
			t.Errorf("got %+v, want 10 slots", g)
		}
	})
}

func TestUnusedSource_HasNoEffectOnAState(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(b bucket){
		"another process was faster":     func(b bucket) { b.acquire(1, 1) },
		"the state is malformed":         func(b bucket) { b.setState("garbled") },
		"the state is of another server": func(b bucket) { b.awake(); b.acquire(1, 1); b.failOver() },
	} {
		simulated(t, func(b bucket, _ *clock) {
			b.more = windowLog(second, 50, 40)
			before(b)
			if g := b.acquireAfter(5, 5, unusedEvent); len(g.all()) > 0 {
				t.Errorf("%s: got %+v, want a quiet period", name, g)
			}
		})
	}
}

func TestUnusedSource_KeepsTheLimit(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.more = windowLog(second, 50, 40)
		all := b.acquireAfter(200, 200, unusedEvent).all()
		high, low := saturate(b, c, 3*second)
		all = append(append(all, high...), low...)
		if got := mostInWindow(all, second-1); got > 50 {
			t.Errorf("got %d slots in a second, want at most 50", got)
		}
	})
}

func TestUnusedSource_BeginsQuietAfterALoss(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, _ *clock) {
		b.acquireAfter(1, 1, unusedEvent)
		b.setState("garbled")
		if g := b.acquire(1, 1); len(g.all()) > 0 {
			t.Errorf("got %+v, want a quiet period", g)
		}
	})
}
