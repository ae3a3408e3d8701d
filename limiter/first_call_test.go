package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// unchanged implements Settings with settings that were never changed.
type unchanged struct{}

func (unchanged) Quota(context.Context, string) (Override, int64, error) { return Override{}, 0, nil }

func TestFirstCall_WaitsOnlyAfterALoss(t *testing.T) {
	config := Config{Jitter: 10 * ms, Policies: []Policy{{Name: "hour", Limit: 60, Window: Window(time.Hour)}}}
	rdb, m := servicetest.MiniRedis(t)
	unused := true
	acquire := func() bool {
		l, err := New("nexon", config, withoutLogs(Deps{Redis: rdb, Settings: unchanged{}, Unused: unused}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		granted := make(chan bool, 1)
		go func() { _, err := l.Acquire(ctx, schemas.High, Call{}); granted <- err == nil }()
		deadline := time.After(10 * time.Second)
		for {
			select {
			case <-granted:
				return true
			case <-deadline:
				t.Fatal("no reply from Redis within 10s")
			case <-time.After(5 * ms):
			}
			l.mu.Lock()
			refused := l.alloc.queues.high.refusal == refusedByStateLoss
			l.mu.Unlock()
			if refused {
				return false
			}
		}
	}
	if !acquire() {
		t.Error("the first call of an unused source waits for the quiet period of a loss")
	}
	m.FlushAll()
	unused = false
	if acquire() {
		t.Error("a call was granted at once after Redis had lost its state")
	}
}
