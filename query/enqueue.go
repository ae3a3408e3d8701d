package query

import (
	"errors"
	"fmt"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// readBody is a read's answer but for the snapshot, which is spliced in as it is
// stored.
type readBody struct {
	Freshness     Freshness  `json:"freshness"`
	LastUpdatedAt *time.Time `json:"lastUpdatedAt"`
	LastCheckedAt *time.Time `json:"lastCheckedAt"`
	UpdateQueued  bool       `json:"updateQueued"`
	waitEstimate
	// Why a refresh that is due is not queued, and when asking again may help.
	NotQueuedReason *string    `json:"notQueuedReason"`
	NotQueuedUntil  *time.Time `json:"notQueuedUntil"`
}

// waitEstimate is how long a queued refresh will wait, and when that was measured.
type waitEstimate struct {
	EstimatedWaitMs *int64     `json:"estimatedWaitMs"`
	EstimatedAt     *time.Time `json:"estimatedAt"`
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// estimateWait returns what is known of how long a request will wait.
func (s *Server) estimateWait(source string) waitEstimate {
	wait, measured, known := s.estimator.EstimateWait(source, schemas.High)
	if !known {
		return waitEstimate{}
	}
	ms := wait.Milliseconds()
	return waitEstimate{&ms, optionalTime(measured.UTC().Truncate(time.Millisecond))}
}

// setResult writes into the answer what became of the wish.
func (b *readBody) setResult(a EnqueueResult, wait func() waitEstimate) {
	b.UpdateQueued = a.Queued
	switch {
	case a.Queued:
		b.waitEstimate = wait()
		return
	case a.Pending:
		a.Reason = reasonPending
	}
	b.NotQueuedReason, b.NotQueuedUntil = &a.Reason, optionalTime(a.Until)
}

// refreshExpected reports whether a refresh is on its way, as far as is known.
func (a EnqueueResult) refreshExpected() bool { return a.Queued || a.Pending || a.Reason == reasonSlow }

// enqueueRead enqueues the update request of a read. A read of a stale snapshot waits
// staleTimeout for the answer; a read for which nothing is stored has nothing else to
// return, and waits until its deadline. The request goes on after that, and is only
// not promised. All reads of the entity by one client at this moment share one request.
func (s *Server) enqueueRead(c echo.Context, who access.Client, w UpdateRequest, deadline time.Time) EnqueueResult {
	urgent := w.Reason == schemas.CacheMiss
	w = s.withTrace(c, w.forClient(who))
	answered := s.enqueues.DoChan(w.flightKey(), func() (any, error) { return s.recordRefusal(s.batcher.enqueue(w, urgent)), nil })
	began := time.Now()
	limit := time.NewTimer(enqueueTimeout(urgent, deadline))
	defer limit.Stop()
	var stopping, left <-chan struct{}
	if urgent {
		stopping, left = s.stopping, c.Request().Context().Done()
	}
	for waiting := true; waiting; {
		select {
		case r := <-answered:
			a, _ := r.Val.(EnqueueResult)
			return a
		case <-stopping: // no client need wait for long, and none is refused for it
			stopping = nil
			limit.Reset(min(acceptTimeout, time.Until(deadline)))
		case <-limit.C:
			waiting = false
		case <-left:
			waiting = false
		}
	}
	return EnqueueResult{Reason: reasonSlow, waited: time.Since(began)}
}

const (
	// staleTimeout is how long a read of a stale snapshot waits for its update request
	// to be accepted, and acceptTimeout a read for which nothing is stored.
	staleTimeout  = 50 * time.Millisecond
	acceptTimeout = 5 * time.Second
)

// acceptDeadline returns until when a read waits for its update request to be
// accepted if nothing is stored: for acceptTimeout, or as long as its client waits.
func acceptDeadline(wait time.Duration) time.Time { return time.Now().Add(max(acceptTimeout, wait)) }

func enqueueTimeout(urgent bool, deadline time.Time) time.Duration {
	if urgent {
		return time.Until(deadline)
	}
	return staleTimeout
}

// refusedResult is the answer to a wish that its client may not make now.
func refusedResult(err error) EnqueueResult {
	a := EnqueueResult{Reason: ReasonTooMany, refused: err}
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		a.Until = time.Now().Add(p.After)
	}
	return a
}

// failureDetail says for a client what was tried for an update request, and why there is none.
func (a EnqueueResult) failureDetail() string {
	switch a.Reason {
	case reasonSlow:
		return fmt.Sprintf("Redis did not accept the update request within %v; it may be accepted yet", a.waited.Round(time.Millisecond))
	case ReasonBusy:
		return "the update request was refused: Kafka or Redis accepts requests more slowly than they come"
	case ReasonDown:
		return "the update request was refused: Redis or Kafka does not answer"
	}
	return "the update request was refused"
}
