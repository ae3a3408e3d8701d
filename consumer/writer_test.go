package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// While no call is in flight, no further result can follow. So a single result must be written without
// waiting for others.
func TestWriter_WritesAloneWithoutLinger(t *testing.T) {
	r := newRig(t)
	r.work(schemas.Low, func(c *consumer.Config) { c.Linger = time.Hour })
	r.enqueue("a", schemas.Low, schemas.Prefetch)
	r.untilStored("a")
	r.untilCommitted(schemas.Low)
}

// heldSettles blocks the settle of one entity's request until `release` is closed.
type heldSettles struct {
	consumer.Requests
	key     string
	holds   chan struct{} // closed as soon as the settle is blocked
	release chan struct{}
}

func (h *heldSettles) Settle(ctx context.Context, ends []schemas.End) error {
	if slices.ContainsFunc(ends, func(e schemas.End) bool { return e.Entity.Key == h.key }) {
		close(h.holds)
		<-h.release
	}
	return h.Requests.Settle(ctx, ends)
}

func TestWriter_WritesDuringASettle(t *testing.T) {
	r := newRig(t)
	held := &heldSettles{Requests: r.requests.Requests, key: "a", holds: make(chan struct{}), release: make(chan struct{})}
	r.requests.Requests = held
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	<-held.holds
	r.enqueue("b", schemas.High, schemas.CacheMiss)
	r.untilStored("b")
	r.until("the lag is 1 or 2", func() bool { n := r.lag(schemas.High); return n == 1 || n == 2 })
	close(held.release)
	r.untilCommitted(schemas.High)
}

// rejectingStore behaves like a database that can't store the content of one entity: it rejects all
// writes of the entity `key`.
type rejectingStore struct {
	consumer.Store
	key string
}

func (s rejectingStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	for _, w := range writes {
		if w.Entity.Key == s.key {
			return nil, fmt.Errorf("write: %w", store.ErrRejected)
		}
	}
	return s.Store.Write(ctx, writes)
}

func TestWriter_IsolatesRejectedRow(t *testing.T) {
	r := newRig(t)
	keys := append([]string{"bad"}, keysOf("k", 20)...)
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	c := consumer.DefaultConfig(schemas.High)
	c.Linger = 200 * time.Millisecond // a linger so long that all results are written in one batch
	r.run(r.worker(c, rejectingStore{r.db, "bad"}, permits{r.limiter}).Run)
	r.untilStored(keys[1:]...)
	r.untilCommitted(schemas.High)
	if l := r.deadLetters(); len(l) != 1 || l[0].Reason != schemas.Unstorable || string(l[0].Key) != "character/bad" {
		t.Errorf("dead letters: got %+v, want 1 UNSTORABLE of character/bad", l)
	}
}
