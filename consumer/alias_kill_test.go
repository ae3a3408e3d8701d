package consumer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// killingStore kills its worker at a chosen write: the write is stored, and the worker does nothing
// afterwards.
type killingStore struct {
	*faultyStore
	kill        func()
	beforeWait  func() // called before the status of a waiting entity is stored; nil means that the worker survives that write
	beforeAlias func() // called before an alias is stored; nil means that the worker survives that write
}

func (k killingStore) WriteFailure(ctx context.Context, s store.Status, d *deadletters.DeadLetter) error {
	if k.beforeWait == nil || s.Reason != schemas.HoldAlias {
		return k.faultyStore.WriteFailure(ctx, s, d)
	}
	k.beforeWait()
	defer k.kill()
	return k.faultyStore.WriteFailure(ctx, s, d)
}

func (k killingStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	if k.beforeAlias == nil || writes[0].Entity.Facet != "id" {
		return k.faultyStore.Write(ctx, writes)
	}
	k.beforeAlias()
	defer k.kill()
	return k.faultyStore.Write(ctx, writes)
}

// mortalRetries announces retries until its worker was killed, and none afterwards.
type mortalRetries struct {
	consumer.Retries
	killed *atomic.Bool
}

func (m mortalRetries) WakeAt(ctx context.Context, at time.Time) {
	if !m.killed.Load() {
		m.Retries.WakeAt(ctx, at)
	}
}

// killedWorker runs a worker of the lane HIGH until the store kills it.
func (r *aliasRig) killedWorker(s killingStore) {
	r.Helper()
	var killed atomic.Bool
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	s.faultyStore = r.db
	s.kill = sync.OnceFunc(func() {
		killed.Store(true)
		r.db.down.Store(true)
		r.requests.noSettle.Store(true)
		cancel()
	})
	deps := r.deps()
	deps.Store, deps.Retries = s, mortalRetries{deps.Retries, &killed}
	config := consumer.DefaultConfig(schemas.High)
	config.DrainTimeout = 10 * time.Millisecond
	w, err := consumer.New(config, r.source, schemas.High, deps)
	if err != nil {
		r.Fatal(err)
	}
	_ = w.Run(ctx) // Run returns an error, because records were in flight
	if !killed.Load() {
		r.Fatal("the worker ended before it was killed")
	}
	r.db.down.Store(false)
	r.requests.noSettle.Store(false)
}

// The alias is stored before the status of the waiting entity. The worker is killed directly after it
// has stored this status. The retry of the entity must be due at once.
func TestAlias_KilledAfterStoringTheWait(t *testing.T) {
	r := newAliasRig(t, nil)
	r.names.ocids["a"] = "o1"
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	id := schemas.Entity{Source: "nexon", Facet: "id", Key: "a"}
	r.killedWorker(killingStore{beforeWait: func() {
		r.until("the alias", func() bool { return textOf(r.db.Store, id) != "" })
	}})
	r.work(schemas.High)
	r.untilContent("a", "o1")
	r.untilIdle()
}

// The worker is killed directly after it has stored the alias, before it has announced that the waiting
// entity's retry is due. The worker that reads the record again must announce it.
func TestAlias_KilledAfterStoringTheAlias(t *testing.T) {
	r := newAliasRig(t, nil)
	r.names.ocids["a"] = "o1"
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.killedWorker(killingStore{beforeAlias: func() {
		r.until("the wait of the character", func() bool { return r.status("a").Reason == schemas.HoldAlias && r.lag(schemas.High) == 1 })
	}})
	r.work(schemas.High)
	r.untilContent("a", "o1")
	r.untilIdle()
}
