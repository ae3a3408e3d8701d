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

// refresh asks for a refresh that begins after the request, and waits for it if
// the client wants to. A client without the scope read is answered 202, or 204 once the
// refresh has landed, and nothing about the snapshot.
func (s *Server) refresh(c echo.Context, who access.Client) error {
	e, f, patience, err := s.entityAndWait(c, who)
	if err != nil {
		return err
	}
	if patience == 0 {
		if _, err := s.enqueueAndWait(c, who, e, f); err != nil {
			return err
		}
		return s.respondQueued(c, e)
	}
	if err := discardBody(c); err != nil {
		return err
	}
	var asked EnqueueResult
	begun := false
	v, inVain, err := s.waitUntil(c, who, patience, e, func(w *waiter) (view, bool, error) {
		var err error
		if !begun {
			begun = true
			asked, err = s.enqueueAndWait(c, who, e, f)
			return view{}, err == nil, err
		}
		v, err := s.readVisible(c, who, e, f)
		if err != nil || v.version() >= asked.Number || (!v.fallback && w.settled.Load() >= asked.Number) {
			return v, false, err
		}
		return v, true, nil // what was settled is something from before, or is not seen yet
	})
	if err != nil {
		return err
	}
	if inVain {
		v = s.readAgain(c, who, e, f, v)
	}
	landed := v.version() >= asked.Number
	switch {
	case inVain && !landed, !who.May(access.Read) && !landed:
		return s.respondQueued(c, e)
	case !who.May(access.Read):
		c.Response().Header().Set("Cache-Control", "no-store")
		return c.NoContent(http.StatusNoContent)
	}
	// It has ended: in a snapshot, or in a failure of which a read tells.
	if v, err = s.readAndEnqueue(c, who, e, f, acceptDeadline(0)); err != nil {
		return err
	}
	return s.respond(c, who, e, v)
}

// discardBody reads a body that nobody asked for: that its client has left is noticed
// only behind it.
func discardBody(c echo.Context) error {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(c.Response(), c.Request().Body, maxBodyBytes)); err != nil {
		return problem.Body(err)
	}
	return nil
}

// respondQueued answers that Kafka has the request.
func (s *Server) respondQueued(c echo.Context, e schemas.Entity) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusAccepted, struct {
		UpdateQueued bool `json:"updateQueued"`
		waitEstimate
	}{true, s.estimateWait(e.Source)})
}

// ackTimeout is how long a refresh may wait for Kafka before it is answered that
// it is not certain.
const ackTimeout = 5 * time.Second

// enqueueAndWait enqueues a refresh of one entity and waits until Kafka has the request: a refresh of
// a person must not be lost to a failed publish, or to the end of this process. The error is
// the problem to answer with if it is not queued.
func (s *Server) enqueueAndWait(c echo.Context, who access.Client, e schemas.Entity, f source.Facet) (EnqueueResult, error) {
	answers, errs := s.enqueueAllAndWait(c, who, []refreshRequest{s.newRefreshRequest(c.Request().Context(), who.Name, e, f)})
	return answers[0], errs[0]
}

// enqueueAllAndWait is insist for several entities. Each has its own answer and its own error.
func (s *Server) enqueueAllAndWait(c echo.Context, who access.Client, all []refreshRequest) ([]EnqueueResult, []error) {
	answers, errs := make([]EnqueueResult, len(all)), make([]error, len(all))
	var wishes []UpdateRequest
	var at []int // of each wish, its place in all
	for i, w := range all {
		if _, refused := errors.AsType[*problem.HTTPError](w.err); refused {
			errs[i] = w.err
		} else if w.known != nil && !who.Sees(w.known.Visibility) {
			errs[i] = errNotVisible
		} else {
			w.request.Client = who.ID()
			wishes, at = append(wishes, s.withTrace(c, w.request)), append(at, i)
		}
	}
	if len(wishes) == 0 {
		return answers, errs
	}
	for j, a := range s.waitForAck(c.Request().Context(), wishes) {
		i := at[j]
		answers[i], errs[i] = a, a.notQueued()
	}
	return answers, errs
}

// notQueued returns the problem of a refresh that is not queued, nil of one that is.
func (a EnqueueResult) notQueued() error {
	switch {
	case a.Queued:
		return nil
	case a.refused != nil:
		return a.refused
	}
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "The refresh could not be queued: "+a.Reason+".")
	if a.Reason == ReasonCooldown {
		p = problem.New(http.StatusTooManyRequests, "cooldown", "This entity was refreshed a moment ago.")
	}
	p.After = max(time.Second, time.Until(a.Until))
	return p
}

// refreshRequest is the wish for a refresh that begins after it, and the stored snapshot, or why
// that can't be read: then the floor is unknown, and numbers rise all the same.
type refreshRequest struct {
	request UpdateRequest
	known   *entry
	err     error
}

func (s *Server) newRefreshRequest(ctx context.Context, client string, e schemas.Entity, f source.Facet) refreshRequest {
	known, _, err := s.cache.get(ctx, client, e, f)
	return s.refreshRequestOf(e, f, known, err)
}

// newRefreshRequests is wanted for several entities of one facet, with one read of the store.
func (s *Server) newRefreshRequests(ctx context.Context, client string, all []schemas.Entity, f source.Facet) []refreshRequest {
	each := make([]refreshRequest, len(all))
	for i, found := range s.cache.getAll(ctx, client, all, f) {
		each[i] = s.refreshRequestOf(all[i], f, found.entry, found.err)
	}
	return each
}

func (s *Server) refreshRequestOf(e schemas.Entity, f source.Facet, known *entry, err error) refreshRequest {
	if _, refused := errors.AsType[*problem.HTTPError](err); err != nil && !refused {
		s.log.Warn("refresh without a look at the store", "entity", e.String(), "err", err)
	}
	return refreshRequest{
		UpdateRequest{Entity: e, Reason: schemas.UserRequest, Floor: view{entry: known}.version(), Cooldown: f.Cooldown, New: known == nil && err == nil},
		known, err,
	}
}

// waitForAck enqueues refreshes and waits until Kafka has them, surePatience at most.
// Requests that wait for a slow Kafka have places of their own, so that they do not keep
// reads from enqueueing.
func (s *Server) waitForAck(ctx context.Context, wishes []UpdateRequest) []EnqueueResult {
	select {
	case s.enqueueSlots <- struct{}{}:
		defer func() { <-s.enqueueSlots }()
	default:
		return repeatResult(wishes, ReasonBusy)
	}
	limit, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	answers := s.recordRefusals(s.enqueuer.EnqueueAndWait(limit, wishes))
	for i := range answers {
		if answers[i].Pending {
			answers[i].Reason = reasonPending
		}
	}
	return answers
}
