package consumer_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/items"
)

// heldStates is a store of collections that delays its first read of states: it returns the states
// that it has read only when proceed is closed. The first request of a new collection reads no state.
type heldStates struct {
	*collection.Collections
	reads         atomic.Int32
	read, proceed chan struct{}
}

func (h *heldStates) States(ctx context.Context, all []schemas.Entity) ([]collection.State, error) {
	states, err := h.Collections.States(ctx, all)
	if h.reads.Add(1) == 1 {
		close(h.read)
		<-h.proceed
	}
	return states, err
}

// A HIGH request has read that page 2 is the next page, and has not begun its fetch. Meanwhile the LOW
// worker stores page 2. The outbox's request of page 3 is covered by the HIGH request. So the HIGH
// request, whose own page 2 is not stored again, must also fetch page 3.
func TestCollection_MovedRequestFetchesTheNextPage(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"})
	held := &heldStates{Collections: r.collections, read: make(chan struct{}), proceed: make(chan struct{})}
	r.high = held
	arrived, answer := make(chan struct{}), make(chan struct{})
	r.list.answer = func(_ http.ResponseWriter, _ *http.Request, n int) bool {
		if n == 2 {
			close(arrived)
			<-answer
		}
		return false
	}
	r.start()
	r.refresh()
	<-arrived // the LOW worker has called page 2
	r.refresh()
	<-held.read
	close(answer)
	r.until("the delivery of the request of page 3", func() bool {
		next, err := r.db.NextOutboxTime(t.Context(), "nexon")
		return err == nil && r.state().Walk.Page == 3 && time.Until(next) > 5*time.Minute
	})
	close(held.proceed)
	r.until("the end of the walk", func() bool { s := r.state(); return !s.CompleteAt.IsZero() && !s.Walk.Open() })
	r.wantCalls("the walk", r.list.take(), "1", "2", "2", "3")
	r.wantList()
}
