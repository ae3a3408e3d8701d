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
	if a.StatusCode != 202 || !a.body.Refresh.Queued || *a.body.Refresh.EstimatedWaitMs != 1000 {
		t.Errorf("got %d %s, want 202", a.StatusCode, a.text)
	}
	if w := r.requests[0]; w.Reason != schemas.UserRequest || w.Floor != 7 || w.Cooldown != time.Minute {
		t.Errorf("update request: got %+v, want USER_REQUEST, the floor 7 and a cooldown of 1m0s", w)
	}
	until := time.Now().Add(30 * time.Second)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult {
		return EnqueueResult{Reason: ReasonCooldown, Until: until}
	}
	if a := r.refresh("a"); a.StatusCode != 429 || a.body.Code != "cooldown" || a.Header.Get("Retry-After") != "30" {
		t.Errorf("got %d %s, Retry-After %s, want 429 cooldown", a.StatusCode, a.text, a.Header.Get("Retry-After"))
	}
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: ReasonDown} }
	if a := r.refresh("a"); a.StatusCode != 503 || a.body.Code != "not-queued" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("got %d %s, want 503 not-queued", a.StatusCode, a.text)
	}
	r.storeErr, r.respond = errors.New("down"), nil // while the store fails, a refresh must be enqueued with Floor 0 (unknown version)
	if a := r.refresh("b"); a.StatusCode != 202 || r.requests[len(r.requests)-1].Floor != 0 {
		t.Errorf("got %d %s, want 202", a.StatusCode, a.text)
	}
}

func TestRefresh_WaitsForKafkaUnlikeARead(t *testing.T) {
	r := newRig(t)
	waitCalls := 0
	r.enqueueAndWait = func(ctx context.Context, _ UpdateRequest) EnqueueResult {
		waitCalls++
		if limit, ok := ctx.Deadline(); !ok || time.Until(limit) > ackTimeout {
			t.Errorf("deadline: got %v, want one within %v", limit, ackTimeout)
		}
		return EnqueueResult{Queued: true}
	}
	if a := r.refresh("a"); a.StatusCode != 202 || waitCalls != 1 {
		t.Errorf("got %d %s, EnqueueAndWait calls: %d, want 202", a.StatusCode, a.text, waitCalls)
	}
	if a := r.get("b"); !a.body.Refresh.Queued || waitCalls != 1 {
		t.Errorf("read: got %d %s, EnqueueAndWait calls: %d, want it queued and 1 call", a.StatusCode, a.text, waitCalls)
	}
	r.enqueueAndWait = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Pending: true} }
	if a := r.refresh("a"); a.StatusCode != 503 || !strings.Contains(a.text, "PENDING") || a.Header.Get("Retry-After") != "1" {
		t.Errorf("never acknowledged: got %d %s, want 503", a.StatusCode, a.text)
	}
}

// Refreshes that wait for Kafka have slots of their own. So reads must still be able to enqueue while
// Kafka acknowledges no refresh.
func TestRefresh_WaitingForKafkaDoesNotBlockReads(t *testing.T) {
	r := newRig(t)
	in, out := make(chan struct{}, maxAckWaits), make(chan struct{})
	r.enqueueAndWait = func(context.Context, UpdateRequest) EnqueueResult {
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
	if a := r.refresh("one-more"); a.StatusCode != 503 || !strings.Contains(a.text, string(ReasonBusy)) {
		t.Errorf("got %d %s, want 503", a.StatusCode, a.text)
	}
	if a := r.get("b"); !a.body.Refresh.Queued {
		t.Errorf("got %d %s, want a queued update request", a.StatusCode, a.text)
	}
	close(out)
	all.Wait()
}
