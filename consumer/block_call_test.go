package consumer_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// refuseOne makes the upstream refuse all calls for the entity with the key "a", each with a
// Retry-After of 30 s. It returns the counter of the refused calls.
func (r *rig) refuseOne() *atomic.Int64 {
	var refused atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("ocid") == "a" {
			refused.Add(1)
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = w.Write([]byte(`{"a":1}`))
	}, func(c *source.Config) {
		c.Rules = append([]source.Rule{{Status: 429, Class: source.Quota, Block: source.BlockCall}}, c.Rules...)
	})
	return &refused
}

// A call is refused with a Retry-After. The worker stores a scheduled retry and then commits the
// record's offset. So the partition continues, and another worker does not call before the 30 s
// have passed.
func TestBlockCall_SchedulesRetry(t *testing.T) {
	r := newRig(t)
	refused := r.refuseOne()
	stop := r.work(schemas.High)
	from := time.Now()
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.enqueueAll(keysOf("k", 20), schemas.High, schemas.CacheMiss)
	r.untilCommitted(schemas.High)
	s := r.status("a")
	if s.State != store.Retrying || s.Rounds != 0 || s.Until.Sub(from) < 30*time.Second {
		t.Errorf("got %s after %v, round %d; want RETRYING after at least 30s, round 0", s.State, s.Until.Sub(from), s.Rounds)
	}
	if now := time.Now(); !now.Before(s.Until) {
		t.Errorf("got the commit %v after the time of the retry, want it before", now.Sub(s.Until))
	}
	stop()
	r.work(schemas.High)
	r.enqueue("b", schemas.High, schemas.CacheMiss)
	r.untilStored("b")
	r.untilCommitted(schemas.High)
	if got := refused.Load(); got != 1 {
		t.Errorf("got %d calls for the refused entity, want 1", got)
	}
}

// A worker is killed between storing the retry and the commit, so the next worker reads the record
// again. The next worker must not repeat the call, because the stored retry covers the request.
func TestBlockCall_SurvivesWorkerKilledBeforeCommit(t *testing.T) {
	r := newRig(t)
	refused := r.refuseOne()
	result := r.enqueue("a", schemas.High, schemas.CacheMiss)
	// The killed worker has started the fetch, the upstream has refused its call, and the worker has
	// stored the scheduled retry.
	request := schemas.UpdateRequest{Entity: entity("a"), Version: result.Number, Lane: schemas.High}
	_, number, err := r.requests.Begin(t.Context(), request, 0)
	if err != nil {
		t.Fatal(err)
	}
	row := store.Status{
		Entity: entity("a"), State: store.Retrying, Reason: string(schemas.Outage), Version: number, Lane: schemas.High,
		Until: time.Now().Add(30 * time.Second), Since: time.Now(), UpdatedAt: time.Now(),
	}
	if err := r.db.WriteFailure(t.Context(), row, nil); err != nil {
		t.Fatal(err)
	}
	r.work(schemas.High)
	r.untilCommitted(schemas.High)
	if got := refused.Load(); got != 0 {
		t.Errorf("got %d calls for the refused entity, want 0", got)
	}
}
