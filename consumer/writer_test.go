package consumer_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
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
