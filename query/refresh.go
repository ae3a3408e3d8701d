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
	e, f, patience, err := s.targetOf(c, who)
	if err != nil {
		return err
	}
	if patience == 0 {
		if _, err := s.insist(c, who, e, f); err != nil {
			return err
		}
		return s.queued(c, e)
	}
	if err := drain(c); err != nil {
		return err
	}
	var asked EnqueueResult
	begun := false
	v, inVain, err := s.await(c, who, patience, e, func(w *waiter) (view, bool, error) {
		var err error
		if !begun {
			begun = true
			asked, err = s.insist(c, who, e, f)
			return view{}, err == nil, err
		}
		v, err := s.see(c, who, e, f)
		if err != nil || v.version() >= asked.Number || (!v.older && w.settled.Load() >= asked.Number) {
			return v, false, err
		}
		return v, true, nil // what was settled is something from before, or is not seen yet
	})
	if err != nil {
		return err
	}
	if inVain {
		v = s.lookLast(c, who, e, f, v)
	}
	landed := v.version() >= asked.Number
	switch {
	case inVain && !landed, !who.May(access.Read) && !landed:
		return s.queued(c, e)
	case !who.May(access.Read):
		c.Response().Header().Set("Cache-Control", "no-store")
		return c.NoContent(http.StatusNoContent)
	}
	// It has ended: in a snapshot, or in a failure of which a read tells.
	if v, err = s.look(c, who, e, f, acceptDeadline(0)); err != nil {
		return err
	}
	return s.answer(c, who, e, v)
}

// drain reads a body that nobody asked for: that its client has left is noticed
// only behind it.
func drain(c echo.Context) error {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(c.Response(), c.Request().Body, bodyMost)); err != nil {
		return problem.Body(err)
	}
	return nil
}

// queued answers that Kafka has the request.
func (s *Server) queued(c echo.Context, e schemas.Entity) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusAccepted, struct {
		UpdateQueued bool `json:"updateQueued"`
		queued
	}{true, s.wait(e.Source)})
}

// surePatience is how long a refresh may wait for Kafka before it is answered that
// it is not certain.
const surePatience = 5 * time.Second

// insist enqueues a refresh of one entity and waits until Kafka has the request: a refresh of
// a person must not be lost to a failed publish, or to the end of this process. The error is
// the problem to answer with if it is not queued.
func (s *Server) insist(c echo.Context, who access.Client, e schemas.Entity, f source.Facet) (EnqueueResult, error) {
	answers, errs := s.insistAll(c, who, []wanted{s.wanted(c.Request().Context(), who.Name, e, f)})
	return answers[0], errs[0]
}

// insistAll is insist for several entities. Each has its own answer and its own error.
func (s *Server) insistAll(c echo.Context, who access.Client, all []wanted) ([]EnqueueResult, []error) {
	answers, errs := make([]EnqueueResult, len(all)), make([]error, len(all))
	var wishes []UpdateRequest
	var at []int // of each wish, its place in all
	for i, w := range all {
		if _, refused := errors.AsType[*problem.HTTPError](w.err); refused {
			errs[i] = w.err
		} else if w.known != nil && !who.Sees(w.known.Visibility) {
			errs[i] = errUnseen
		} else {
			w.wish.Client = who.ID()
			wishes, at = append(wishes, s.traced(c, w.wish)), append(at, i)
		}
	}
	if len(wishes) == 0 {
		return answers, errs
	}
	for j, a := range s.untilSure(c.Request().Context(), wishes) {
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

// wanted is the wish for a refresh that begins after it, and the stored snapshot, or why
// that can't be read: then the floor is unknown, and numbers rise all the same.
type wanted struct {
	wish  UpdateRequest
	known *entry
	err   error
}

func (s *Server) wanted(ctx context.Context, client string, e schemas.Entity, f source.Facet) wanted {
	known, _, err := s.memory.get(ctx, client, e, f)
	return s.wantedOf(e, f, known, err)
}

// wantedAll is wanted for several entities of one facet, with one read of the store.
func (s *Server) wantedAll(ctx context.Context, client string, all []schemas.Entity, f source.Facet) []wanted {
	each := make([]wanted, len(all))
	for i, found := range s.memory.getAll(ctx, client, all, f) {
		each[i] = s.wantedOf(all[i], f, found.entry, found.err)
	}
	return each
}

func (s *Server) wantedOf(e schemas.Entity, f source.Facet, known *entry, err error) wanted {
	if _, refused := errors.AsType[*problem.HTTPError](err); err != nil && !refused {
		s.log.Warn("refresh without a look at the store", "entity", e.String(), "err", err)
	}
	return wanted{
		UpdateRequest{Entity: e, Reason: schemas.UserRequest, Floor: view{entry: known}.version(), Cooldown: f.Cooldown, New: known == nil && err == nil},
		known, err,
	}
}

// untilSure enqueues refreshes and waits until Kafka has them, surePatience at most.
// Requests that wait for a slow Kafka have places of their own, so that they do not keep
// reads from enqueueing.
func (s *Server) untilSure(ctx context.Context, wishes []UpdateRequest) []EnqueueResult {
	select {
	case s.waiting <- struct{}{}:
		defer func() { <-s.waiting }()
	default:
		return sameAnswer(wishes, ReasonBusy)
	}
	limit, cancel := context.WithTimeout(ctx, surePatience)
	defer cancel()
	answers := s.refuse(s.requests.EnqueueAndWait(limit, wishes))
	for i := range answers {
		if answers[i].Pending {
			answers[i].Reason = reasonPending
		}
	}
	return answers
}
