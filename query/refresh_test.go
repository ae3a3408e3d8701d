package query

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

func TestRefresh_ReportsWhyItIsNotQueued(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	r.wait = time.Second
	a := r.refresh("a")
	if a.StatusCode != 202 || !a.body.UpdateQueued || *a.body.EstimatedWaitMs != 1000 {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	if w := r.wishes[0]; w.Reason != schemas.UserRequest || w.Floor != 7 || w.Cooldown != time.Minute {
		t.Errorf("wish %+v", w)
	}
	until := time.Now().Add(30 * time.Second)
	r.answer = func(context.Context, UpdateRequest) EnqueueResult {
		return EnqueueResult{Reason: ReasonCooldown, Until: until}
	}
	if a := r.refresh("a"); a.StatusCode != 429 || a.body.Code != "cooldown" || a.Header.Get("Retry-After") != "30" {
		t.Errorf("%d %s, Retry-After %s", a.StatusCode, a.text, a.Header.Get("Retry-After"))
	}
	r.answer = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: ReasonDown} }
	if a := r.refresh("a"); a.StatusCode != 503 || a.body.Code != "not-queued" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	r.storeErr, r.answer = errors.New("down"), nil // the floor is unknown, and the request is enqueued anyway
	if a := r.refresh("b"); a.StatusCode != 202 || r.wishes[len(r.wishes)-1].Floor != 0 {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
}

func TestRefresh_WaitsForKafkaUnlikeARead(t *testing.T) {
	r := newRig(t)
	insisted := 0
	r.insist = func(ctx context.Context, _ UpdateRequest) EnqueueResult {
		insisted++
		if limit, ok := ctx.Deadline(); !ok || time.Until(limit) > ackTimeout {
			t.Errorf("a limit at %v", limit)
		}
		return EnqueueResult{Queued: true}
	}
	if a := r.refresh("a"); a.StatusCode != 202 || insisted != 1 {
		t.Errorf("%d %s, insisted %d times", a.StatusCode, a.text, insisted)
	}
	if a := r.get("b"); !a.body.UpdateQueued || insisted != 1 {
		t.Errorf("%d %s, insisted %d times", a.StatusCode, a.text, insisted)
	}
	r.insist = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Pending: true} }
	if a := r.refresh("a"); a.StatusCode != 503 || !strings.Contains(a.text, "PENDING") || a.Header.Get("Retry-After") != "1" {
		t.Errorf("never certain: %d %s", a.StatusCode, a.text)
	}
}

// Refreshes that wait for Kafka have their own slots: while Kafka acknowledges none of them,
// reads still enqueue.
func TestRefresh_WaitingForKafkaDoesNotBlockReads(t *testing.T) {
	r := newRig(t)
	in, out := make(chan struct{}, maxAckWaits), make(chan struct{})
	r.insist = func(context.Context, UpdateRequest) EnqueueResult {
		in <- struct{}{}
		<-out
		return EnqueueResult{Queued: true}
	}
	var all sync.WaitGroup
	for i := range maxAckWaits {
		all.Go(func() { r.refresh(strconv.Itoa(i)) })
	}
	for range maxAckWaits {
		<-in
	}
	if a := r.refresh("one-more"); a.StatusCode != 503 || !strings.Contains(a.text, ReasonBusy) {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	if a := r.get("b"); !a.body.UpdateQueued {
		t.Errorf("%d %s", a.StatusCode, a.text)
	}
	close(out)
	all.Wait()
}
