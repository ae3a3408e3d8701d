package query

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/singleflight"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// readBody has the fields of a read response, except the snapshot. The stored bytes of the
// snapshot are written before these fields.
type readBody struct {
	Freshness     store.Freshness `json:"freshness"`
	LastUpdatedAt *time.Time      `json:"lastUpdatedAt,omitempty"`
	LastCheckedAt *time.Time      `json:"lastCheckedAt,omitempty"`
	Refresh       *refreshState   `json:"refresh,omitempty"` // nil means that no refresh is due
}

// refreshState is the state of a refresh that is due or was requested.
type refreshState struct {
	Queued bool `json:"queued"`
	// EstimatedWaitMs is how long a queued update request will probably wait, in milliseconds; nil
	// means unknown. MeasuredAt is the time of this estimate.
	EstimatedWaitMs *int64     `json:"estimatedWaitMs,omitempty"`
	MeasuredAt      *time.Time `json:"measuredAt,omitempty"`
	// Reason says why the refresh is not queued, or why the source sends no calls. Until is the time
	// at which a new request may succeed, the backoff ends, or the next probe is sent.
	Reason RefreshReason `json:"reason,omitempty"`
	Until  *time.Time    `json:"until,omitempty"`
}

// freshnessMissing is the freshness of a response without a snapshot if no refresh is queued. The
// store does not have this state: store.FreshnessOf returns store.Updating for such an entity.
const freshnessMissing store.Freshness = "MISSING"

// requester enqueues the update requests of clients, and describes their states.
type requester struct {
	catalog   *catalog
	cache     *snapshotCache
	enqueuer  Enqueuer
	batcher   *batcher
	flights   singleflight.Group // the update requests of reads that are being enqueued
	refreshes refreshes
	estimator WaitEstimator
	limiter   ClientLimiter
	tracing   *tracing
	stopping  <-chan struct{} // closed at shutdown
	log       *slog.Logger
}

// queuedState returns the state of a queued refresh of the source: why the source sends no calls, or
// how long the HIGH request with this number will probably wait. The number 0 stands for a request that
// is published now.
func (q *requester) queuedState(source string, number int64) *refreshState {
	if reason, until := q.estimator.Blocked(source); reason != "" {
		return &refreshState{Queued: true, Reason: reason, Until: schemas.OptionalTime(until.UTC().Truncate(time.Millisecond))}
	}
	wait, measured, known := q.estimator.EstimateWait(source, number)
	if !known {
		return &refreshState{Queued: true}
	}
	ms := wait.Milliseconds()
	return &refreshState{Queued: true, EstimatedWaitMs: &ms, MeasuredAt: schemas.OptionalTime(measured.UTC().Truncate(time.Millisecond))}
}

// refreshStateOf returns the state of a refresh, derived from the result of its update request.
func (q *requester) refreshStateOf(source string, result EnqueueResult) *refreshState {
	switch {
	case result.Queued:
		return q.queuedState(source, result.Number)
	case result.Pending:
		result.Reason = reasonPending
	}
	return &refreshState{Reason: result.Reason, Until: schemas.OptionalTime(result.Until.UTC().Truncate(time.Millisecond))}
}

// refreshExpected reports whether a refresh has been or may have been queued.
func (result EnqueueResult) refreshExpected() bool {
	return result.Queued || result.Pending || result.Reason == reasonSlow
}

// enqueueRead enqueues the update request of a read and waits for the result: staleTimeout if a
// stale snapshot can be served, else until the deadline. If the time is up, it returns reasonSlow,
// and the update request continues in the background. Concurrent reads of an entity by one client
// share one request.
func (q *requester) enqueueRead(c echo.Context, client access.Client, req UpdateRequest, deadline time.Time) EnqueueResult {
	urgent := req.Reason == schemas.CacheMiss
	req = q.tracing.withTrace(c, req.forClient(client))
	done := q.flights.DoChan(req.flightKey(), func() (any, error) {
		return q.enqueueComplete([]UpdateRequest{req}, func(complete []UpdateRequest) []EnqueueResult {
			return []EnqueueResult{q.recordRefusal(q.batcher.enqueue(complete[0], urgent))}
		})[0], nil
	})
	began := time.Now()
	limit := time.NewTimer(enqueueTimeout(urgent, deadline))
	defer limit.Stop()
	var stopping, canceled <-chan struct{}
	if urgent {
		stopping, canceled = q.stopping, c.Request().Context().Done()
	}
	for waiting := true; waiting; {
		select {
		case r := <-done:
			result, _ := r.Val.(EnqueueResult)
			return result
		case <-stopping: // a shutdown shortens the wait to acceptTimeout
			stopping = nil
			limit.Reset(min(acceptTimeout, time.Until(deadline)))
		case <-limit.C:
			waiting = false
		case <-canceled:
			waiting = false
		}
	}
	return EnqueueResult{Reason: reasonSlow, waited: time.Since(began)}
}

const (
	// staleTimeout is how long a read of a stale snapshot waits until its update request is
	// accepted. If nothing is stored, a read waits up to acceptTimeout, or up to the wait that
	// the client requested if that is longer.
	staleTimeout  = 50 * time.Millisecond
	acceptTimeout = 5 * time.Second
)

// acceptDeadline returns the deadline for accepting the update request if nothing is stored: after
// `acceptTimeout`, or after the client's own wait if that is longer.
func acceptDeadline(wait time.Duration) time.Time { return time.Now().Add(max(acceptTimeout, wait)) }

func enqueueTimeout(urgent bool, deadline time.Time) time.Duration {
	if urgent {
		return time.Until(deadline)
	}
	return staleTimeout
}

// refusedResult returns the result of an update request that exceeds a limit of its client. `err` is
// the problem for the client.
func refusedResult(err error) EnqueueResult {
	result := EnqueueResult{Reason: ReasonTooMany, refused: err}
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		result.Until = time.Now().Add(p.After)
	}
	return result
}

// failureDetail returns a sentence for the client: why the update request was not accepted.
func (result EnqueueResult) failureDetail() string {
	switch string(result.Reason) {
	case string(reasonSlow):
		return fmt.Sprintf("Redis did not accept the update request within %v; it may still be accepted", result.waited.Round(time.Millisecond))
	case string(ReasonBusy):
		return "the update request was rejected: Kafka or Redis is too slow"
	case string(ReasonDown):
		return "the update request was rejected: Redis or Kafka is unavailable"
	}
	return "the update request was refused"
}
