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
	var asked Answer
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

// insist asks until Kafka has somebody's record: a person who asks for a refresh must
// not lose it to a publish that fails, or to the end of this process.
func (s *Server) insist(c echo.Context, who access.Client, e schemas.Entity, f source.Facet) (Answer, error) {
	w, known, err := s.wished(c.Request().Context(), who.Name, e, f)
	if _, refused := errors.AsType[*problem.HTTPError](err); refused {
		return Answer{}, err
	}
	if known != nil && !who.Sees(known.Visibility) {
		return Answer{}, errUnseen
	}
	w.Client = who.ID()
	w = s.traced(c, w)
	a := s.untilSure(c.Request().Context(), w)
	if a.Queued {
		return a, nil
	}
	if a.refused != nil {
		return a, a.refused
	}
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "The refresh could not be queued: "+a.Reason+".")
	if a.Reason == ReasonCooldown {
		p = problem.New(http.StatusTooManyRequests, "cooldown", "This entity was refreshed a moment ago.")
	}
	p.After = max(time.Second, time.Until(a.Until))
	return a, p
}

// wished returns the wish for a refresh that begins after it, and what is stored, or why
// that can't be looked at: then the floor is unknown, and numbers rise all the same.
func (s *Server) wished(ctx context.Context, client string, e schemas.Entity, f source.Facet) (w Wish, known *entry, err error) {
	known, _, err = s.memory.get(ctx, client, e, f)
	if _, refused := errors.AsType[*problem.HTTPError](err); err != nil && !refused {
		s.log.Warn("refresh without a look at the store", "entity", e.String(), "err", err)
	}
	return Wish{Entity: e, Reason: schemas.UserRequest, Floor: view{entry: known}.version(), Cooldown: f.Cooldown, New: known == nil && err == nil}, known, err
}

// untilSure waits for certainty, in a room of its own: those who wait for a slow Kafka
// must not keep reads from asking.
func (s *Server) untilSure(ctx context.Context, w Wish) Answer {
	select {
	case s.waiting <- struct{}{}:
		defer func() { <-s.waiting }()
	default:
		return Answer{Reason: ReasonBusy}
	}
	limit, cancel := context.WithTimeout(ctx, surePatience)
	defer cancel()
	a := s.refused(s.requests.Insist(limit, w))
	if a.Pending {
		a.Reason = reasonPending
	}
	return a
}
