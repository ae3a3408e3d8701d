package query

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// refresh enqueues a strict update request, whose fetch begins after the HTTP request. If the
// client requests a wait, refresh responds when the fetch has ended or the wait has timed out. A
// client without the scope read never gets the snapshot: it gets the status 204 if the new snapshot
// is stored by the time of the response, else 202.
func (s *Server) refresh(c echo.Context, client access.Client) error {
	e, f, wait, err := s.catalog.entityAndWait(c, client)
	if err != nil {
		return err
	}
	if wait <= 0 {
		result, err := s.requester.enqueueAndWait(c, client, e, f)
		if err != nil {
			return err
		}
		return s.respondQueued(c, e, result.Number)
	}
	if err := discardBody(c); err != nil {
		return err
	}
	var result EnqueueResult
	enqueued := false
	v, timedOut, err := s.waits.waitUntil(c, client, wait, e, func(req *waiter) (view, bool, error) {
		var err error
		if !enqueued {
			enqueued = true
			result, err = s.requester.enqueueAndWait(c, client, e, f)
			if err != nil || !result.isRepeated {
				return view{}, err == nil, err
			}
			// The repeated request may have been settled before this request began to wait.
		}
		v, err := s.reader.readVisible(c, client, e, f)
		if err != nil || v.version() >= result.Number || (!v.fallback && req.settled.Load() >= result.Number) {
			return v, false, err
		}
		// the settle message was about an earlier request, or the new snapshot can't be read yet:
		// continue to wait
		return v, true, nil
	})
	if err != nil {
		return err
	}
	if timedOut {
		v = s.reader.readAgain(c, client, e, f, v)
	}
	isStored := v.version() >= result.Number
	switch {
	case timedOut && !isStored, !client.May(access.Read) && !isStored:
		return s.respondQueued(c, e, result.Number)
	case !client.May(access.Read):
		c.Response().Header().Set("Cache-Control", "no-store")
		return c.NoContent(http.StatusNoContent)
	}
	// The update request has ended: either a new snapshot is stored, or the fetch failed. In both
	// cases readAndEnqueue returns the current state of the entity.
	if v, err = s.reader.readAndEnqueue(c, client, e, f, acceptDeadline(0)); err != nil {
		return err
	}
	return s.responder.respond(c, client, e, v)
}

// discardBody reads the request body to its end. Only then can net/http detect that a client has
// disconnected.
func discardBody(c echo.Context) error {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(c.Response(), c.Request().Body, maxBodyBytes)); err != nil {
		return problem.Body(err)
	}
	return nil
}

// respondQueued responds that Kafka has acknowledged the request with this number.
func (s *Server) respondQueued(c echo.Context, e schemas.Entity, number int64) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusAccepted, struct {
		Refresh *refreshState `json:"refresh"`
	}{s.requester.queuedState(e.Source, number)})
}

// ackTimeout is how long a refresh waits for Kafka. After that the response says that the result
// is unknown.
const ackTimeout = 5 * time.Second

// enqueueAndWait enqueues a refresh of one entity and waits until Kafka has acknowledged it. Without
// the wait, a failed publish or the end of this process could lose the refresh. The error is the
// problem to respond with if the refresh is not queued. A refresh that is repeated with its
// idempotency key is not enqueued again.
func (q *requester) enqueueAndWait(c echo.Context, client access.Client, e schemas.Entity, f source.Facet) (EnqueueResult, error) {
	return q.refreshes.once(c, client, e, func(key string) (EnqueueResult, error) {
		results, errs := q.enqueueAllAndWait(c, client, []refreshRequest{q.newRefreshRequest(c.Request().Context(), client.Name, e, f)}, key)
		return results[0], errs[0]
	})
}

// enqueueAllAndWait enqueues refreshes of several entities and waits until Kafka has acknowledged
// them. It returns a result and an error for each entity. The error is the problem to respond with
// if the refresh is not queued. The idempotency key may be empty.
func (q *requester) enqueueAllAndWait(c echo.Context, client access.Client, all []refreshRequest, idempotencyKey string) ([]EnqueueResult, []error) {
	results, errs := make([]EnqueueResult, len(all)), make([]error, len(all))
	var requests []UpdateRequest
	var indexes []int // for each element of requests, its index in all
	for i, req := range all {
		if _, refused := errors.AsType[*problem.HTTPError](req.err); refused {
			errs[i] = req.err
		} else if req.stored != nil && !client.Sees(req.stored.Visibility) {
			errs[i] = errNotVisible
		} else {
			req.request.Client = client.ID()
			requests, indexes = append(requests, q.tracing.withTrace(c, req.request)), append(indexes, i)
		}
	}
	if len(requests) == 0 {
		return results, errs
	}
	enqueued := q.refreshes.pay(c.Request().Context(), client, idempotencyKey, requests, q.waitForAck)
	for j, a := range enqueued {
		i := indexes[j]
		results[i], errs[i] = a, a.notQueued()
	}
	return results, errs
}

// notQueued returns the problem of a refresh that is not queued; nil if it is queued.
func (result EnqueueResult) notQueued() error {
	switch {
	case result.Queued:
		return nil
	case result.refused != nil:
		return result.refused
	}
	p := problem.New(http.StatusServiceUnavailable, problem.NotQueued, "The refresh is not queued: "+string(result.Reason)+".")
	if result.Reason == ReasonCooldown {
		p = problem.New(http.StatusTooManyRequests, problem.Cooldown, "This entity was refreshed recently. Retry after the cool-down.")
	}
	p.After = max(time.Second, time.Until(result.Until))
	return p
}

// refreshRequest is a strict update request, with the stored snapshot or the error of reading it.
// After an error the floor (docs/concepts.md) is 0. The request still gets a version above the
// stored version, because a new version is never below the time of Redis in milliseconds.
type refreshRequest struct {
	request UpdateRequest
	stored  *entry
	err     error
}

func (q *requester) newRefreshRequest(ctx context.Context, client string, e schemas.Entity, f source.Facet) refreshRequest {
	stored, _, err := q.cache.get(ctx, client, e, f)
	return q.refreshRequestOf(e, f, stored, err)
}

// newRefreshRequests returns the refresh requests of several entities of one facet. It reads the
// stored snapshots of all entities with one read of the store.
func (q *requester) newRefreshRequests(ctx context.Context, client string, all []schemas.Entity, f source.Facet) []refreshRequest {
	requests := make([]refreshRequest, len(all))
	for i, found := range q.cache.getAll(ctx, client, all, f) {
		requests[i] = q.refreshRequestOf(all[i], f, found.entry, found.err)
	}
	return requests
}

func (q *requester) refreshRequestOf(e schemas.Entity, f source.Facet, stored *entry, err error) refreshRequest {
	if _, refused := errors.AsType[*problem.HTTPError](err); err != nil && !refused {
		q.log.Warn("store read failed; the refresh is enqueued without the version of the stored snapshot", "entity", e.String(), "err", err)
	}
	return refreshRequest{
		UpdateRequest{Entity: e, Reason: schemas.UserRequest, Floor: view{entry: stored}.version(), Cooldown: f.Cooldown, New: stored == nil && err == nil},
		stored, err,
	}
}

// waitForAck enqueues refreshes and waits at most ackTimeout until Kafka has acknowledged them.
// At most maxAckWaits calls wait at the same time; a further call returns ReasonBusy. Update
// requests of reads do not count, so a slow Kafka does not block them.
func (q *requester) waitForAck(ctx context.Context, requests []UpdateRequest) []EnqueueResult {
	select {
	case q.refreshes.slots <- struct{}{}:
		defer func() { <-q.refreshes.slots }()
	default:
		return repeatResult(requests, ReasonBusy)
	}
	limit, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	results := q.enqueueComplete(requests, func(complete []UpdateRequest) []EnqueueResult {
		return q.recordRefusals(q.enqueuer.EnqueueAndWait(limit, complete))
	})
	for i := range results {
		if results[i].Pending {
			results[i].Reason = reasonPending
		}
	}
	return results
}
