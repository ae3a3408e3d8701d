package limiter

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// judge records the spent permits, like an upstream.
type judge struct {
	mu    sync.Mutex
	spent []time.Time
	byLow int
}

func (j *judge) most(window time.Duration) int {
	most, from := 0, 0
	for to, at := range j.spent {
		for at.Sub(j.spent[from]) > window {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

func TestLimiter_ProcessesShareTheLimit(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		source := servicetest.Name("nexon")
		var j judge
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		for range 3 {
			l, err := New(source, second(500, 450, 100, 0), withoutLogs(Deps{Redis: rdb}))
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if err := l.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			for i := range 100 {
				lane := []schemas.Lane{schemas.High, schemas.Low, schemas.Low}[i%3]
				wg.Go(func() {
					for {
						p, err := l.Acquire(ctx, lane, Call{})
						if err != nil {
							return
						}
						// The time is read while the lock is held, so the records are in order.
						j.mu.Lock()
						if p.Spend() {
							j.spent = append(j.spent, time.Now())
							if lane == schemas.Low {
								j.byLow++
							}
						}
						enough := len(j.spent) >= 1200
						j.mu.Unlock()
						if enough {
							stop()
						}
					}
				})
			}
		}
		wg.Wait()
		if most := j.most(time.Second); most > 497 {
			t.Errorf("got %d permits in a second, want at most the limit", most)
		}
		if j.byLow == 0 || j.byLow == len(j.spent) {
			t.Errorf("LOW spent %d of %d", j.byLow, len(j.spent))
		}
		t.Logf("%d permits, at most %d in a second, over %v", len(j.spent), j.most(time.Second), j.spent[len(j.spent)-1].Sub(j.spent[0]))
	})
}

func TestCheckRedis_RejectsEviction(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		if err := CheckRedis(t.Context(), rdb); err != nil {
			t.Error(err)
		}
	})
}
