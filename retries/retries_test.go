package retries

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

const waitTimeout = time.Minute

// fakeEnqueuer records enqueued retries, after it has rejected the first `refuse` of them.
type fakeEnqueuer struct {
	mu       sync.Mutex
	refuse   int
	enqueued []string
	seen     chan string
}

func (d *fakeEnqueuer) Enqueue(_ context.Context, due []store.Status) (left []store.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range due {
		if d.refuse > 0 {
			d.refuse--
			left = append(left, s)
			continue
		}
		d.enqueued = append(d.enqueued, s.Entity.Key)
		d.seen <- s.Entity.Key
	}
	return left
}

type rig struct {
	*testing.T
	db       *sqlite.Store
	enqueuer *fakeEnqueuer
	rdb      redis.UniversalClient
	redis    *miniredis.Miniredis
	many     []*Retries
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{T: t, db: db, enqueuer: &fakeEnqueuer{seen: make(chan string, 10_000)}}
	r.rdb, r.redis = servicetest.MiniRedis(t)
	return r
}

// start runs the given number of instances on one store and one Redis until the test ends.
func (r *rig) start(instances int) {
	r.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range instances {
		one := New("nexon", r.db, r.enqueuer, r.rdb, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		r.many = append(r.many, one)
		wg.Go(func() {
			if err := one.Run(ctx); err != nil {
				r.Error(err)
			}
		})
	}
	r.Cleanup(func() { stop(); wg.Wait() })
}

// schedule stores a retry like a worker does. If `announce` is true, it also announces the retry to all
// instances.
func (r *rig) schedule(key string, at time.Time, announce bool) {
	r.Helper()
	e := schemas.Entity{Source: "nexon", Facet: "character", Key: key}
	err := r.db.WriteFailure(r.Context(), store.Status{
		Entity: e, State: store.Retrying, Version: 1, Rounds: 1, Until: at, Lane: schemas.Low, Since: at, UpdatedAt: at,
	}, nil)
	if err != nil {
		r.Fatal(err)
	}
	if announce {
		r.many[0].WakeAt(r.Context(), at)
	}
}

func (r *rig) wantEnqueued(want string) {
	r.Helper()
	select {
	case got := <-r.enqueuer.seen:
		if want != "" && got != want {
			r.Errorf("enqueued %s, want %s", got, want)
		}
	case <-time.After(waitTimeout):
		r.Fatalf("%s was not enqueued within %v", want, waitTimeout)
	}
}

func TestRetries_EnqueuesWhenDue(t *testing.T) {
	r := newRig(t)
	r.start(2)
	due := time.Now().Add(300 * time.Millisecond)
	r.schedule("later", time.Now().Add(time.Hour), true)
	r.schedule("soon", due, true) // the announcement of "soon" must wake the instances, which sleep until the retry "later" is due
	r.wantEnqueued("soon")
	if time.Now().Before(due) {
		t.Errorf("enqueued %v too early", time.Until(due))
	}
	next, err := r.db.NextRetryTime(t.Context(), "nexon")
	if err != nil || time.Until(next) < lease-time.Minute {
		t.Errorf("next due: got %v (%v), want the end of the lease", next, err)
	}
}

func TestRetries_InstancesShareDueRetries(t *testing.T) {
	r := newRig(t)
	r.start(4)
	const n = 3 * maxClaim
	due := time.Now().Add(200 * time.Millisecond)
	for i := range n {
		r.schedule(fmt.Sprint(i), due, i == n-1) // only the last retry is announced; the instances must find the other due retries in the database too
	}
	for range n {
		r.wantEnqueued("")
	}
	r.enqueuer.mu.Lock()
	defer r.enqueuer.mu.Unlock()
	times := map[string]int{}
	for _, key := range r.enqueuer.enqueued {
		times[key]++
	}
	if len(times) != n || len(r.enqueuer.enqueued) != n {
		t.Errorf("enqueued %d of %d retries, %d times", len(times), n, len(r.enqueuer.enqueued))
	}
}

func TestRetries_FindsEarlierScheduledRetries(t *testing.T) {
	r := newRig(t)
	r.schedule("old", time.Now().Add(-time.Hour), false)
	r.start(1)
	r.wantEnqueued("old")
}

func TestRetries_WakeAtNeedsNoRedis(t *testing.T) {
	r := newRig(t)
	r.redis.Close()
	r.start(1)
	r.schedule("later", time.Now().Add(time.Hour), true)
	r.schedule("a", time.Now().Add(100*time.Millisecond), true)
	r.wantEnqueued("a")
}

func TestRetries_RepeatsRejectedRetries(t *testing.T) {
	r := newRig(t)
	r.start(1)
	r.enqueuer.mu.Lock()
	r.enqueuer.refuse = 3
	r.enqueuer.mu.Unlock()
	r.schedule("a", time.Now(), true)
	r.wantEnqueued("a")
}

func TestRetries_FindsMissedAfterReconnect(t *testing.T) {
	r := newRig(t)
	r.start(1)
	r.schedule("first", time.Now(), true)
	r.wantEnqueued("first")
	r.redis.Close()
	r.schedule("missed", time.Now(), true)
	if err := r.redis.Restart(); err != nil {
		t.Fatal(err)
	}
	r.wantEnqueued("missed")
}
