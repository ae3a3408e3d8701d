package producer

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/schemas"
)

// blockProduce blocks the broker's responses to produce requests until `release` is called. The
// channel `held` receives a value when the first produce request is blocked.
func (r *rig) blockProduce() (held <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 1), make(chan struct{})
	r.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case in <- struct{}{}:
		default:
		}
		r.kafka.SleepControl(func() { <-out })
		return nil, nil, false
	})
	return in, func() { close(out) }
}

func TestEnqueueAndWait_ReturnsAfterTheAck(t *testing.T) {
	eachRedis(t, func(r *rig) {
		held, release := r.blockProduce()
		req := r.request("a", schemas.High, schemas.UserRequest)
		req.Cooldown = time.Hour
		own, other := make(chan Result, 1), make(chan Result, 1)
		go func() { own <- r.EnqueueAndWait(r.Context(), req) }()
		<-held
		go func() { other <- r.EnqueueAndWait(r.Context(), req) }() // the record of the first request covers this request too

		gone, leave := context.WithCancel(r.Context())
		leave()
		if got := r.EnqueueAndWait(gone, req); got.Outcome != Pending || got.Queued() || got.Err != nil {
			r.Errorf("canceled: got %+v, want PENDING", got)
		}
		select {
		case got := <-own:
			r.Errorf("returned before the ack: %+v", got)
		case got := <-other:
			r.Errorf("the covered request returned before the ack: %+v", got)
		default:
		}
		release()
		if got := <-own; got.Outcome != Published || got.Err != nil {
			r.Errorf("got %+v, want PUBLISHED", got)
		}
		if got := <-other; got.Outcome != AlreadyProcessing || got.Err != nil {
			r.Errorf("the covered request: got %+v, want ALREADY_PROCESSING", got)
		}
		if n := len(r.records(schemas.High, 1)); n != 1 {
			r.Errorf("got %d records, want 1", n)
		}
	})
}

func TestEnqueueAllAndWait_PublishesEachOnce(t *testing.T) {
	eachRedis(t, func(r *rig) {
		requests := make([]Request, 700) // 700 requests for 600 entities, in more than one pipeline
		for i := range requests {
			requests[i] = r.request(strconv.Itoa(i%600), schemas.Low, schemas.Prefetch)
		}
		outcomes := map[Outcome]int{}
		for _, got := range r.EnqueueAllAndWait(r.Context(), requests) {
			if got.Err != nil {
				r.Fatal(got.Err)
			}
			outcomes[got.Outcome]++
		}
		if outcomes[Published] != 600 || outcomes[AlreadyProcessing] != 100 || len(r.records(schemas.Low, 600)) != 600 {
			r.Errorf("outcomes: got %v, want 600 PUBLISHED and 100 ALREADY_PROCESSING", outcomes)
		}
	})
}

func TestEnqueueAndWait_CanceledIsPending(t *testing.T) {
	eachRedis(t, func(r *rig) {
		held, release := r.blockProduce()
		req := r.request("a", schemas.High, schemas.UserRequest)
		req.Cooldown = time.Hour
		ctx, leave := context.WithCancel(r.Context())
		answered := make(chan Result, 1)
		go func() { answered <- r.EnqueueAndWait(ctx, req) }()
		<-held
		leave()
		if got := <-answered; got.Outcome != Pending || got.Queued() {
			r.Errorf("got %+v, want PENDING", got)
		}
		release() // the record is written although the caller no longer waits
		if got := r.EnqueueAndWait(r.Context(), req); got.Outcome != AlreadyProcessing {
			r.Errorf("enqueued again: got %+v, want ALREADY_PROCESSING", got)
		}
	})
}

func TestEnqueueAndWait_ReportsFailedPublish(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.failProduce(kerr.TopicAuthorizationFailed.Code)
		req := r.request("a", schemas.High, schemas.UserRequest)
		req.Cooldown = time.Hour
		for range 2 { // a request whose publish failed must start no cool-down, so the second try must not be refused
			if got := r.EnqueueAndWait(r.Context(), req); !errors.Is(got.Err, ErrNotSent) || !errors.Is(got.Err, kerr.TopicAuthorizationFailed) || got.Queued() {
				r.Errorf("got %+v, want ErrNotSent", got)
			}
			r.waitUntilConfirmed()
		}
	})
}
