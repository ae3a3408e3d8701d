package query

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// view is what one look at an entity found, and what became of the wish it led to.
type view struct {
	*entry    // nil: nothing is stored
	freshness Freshness
	reason    schemas.Reason // why a refresh is wanted; empty: none is
	answer    Answer
	at        time.Time
}

// look finds an entity and asks for a refresh if one is due.
func (s *Server) look(c echo.Context, who access.Client, e schemas.Entity, f source.Facet) (view, error) {
	found, err := s.memory.get(c.Request().Context(), e, f)
	if err != nil {
		return view{}, s.unreadable(c, e, err)
	}
	v := view{entry: found, at: time.Now()}
	v.freshness, v.reason = judge(found, f, v.at)
	if v.reason != "" {
		v.answer = s.ask(c, who, Wish{Entity: e, Reason: v.reason, Floor: v.version()})
	}
	return v, nil
}

// unreadable is the problem of a store that can't be read, where nothing is
// remembered either.
func (s *Server) unreadable(c echo.Context, e schemas.Entity, err error) error {
	s.log.Warn("the store can't be read", "entity", e.String(), "correlation_id", correlationOf(c), "err", err)
	p := problem.New(http.StatusServiceUnavailable, "store-unavailable", "The snapshots can't be read at the moment.")
	p.After = time.Second
	return p
}

func (v view) version() int64 {
	if v.entry == nil {
		return 0
	}
	return v.Version
}

// body returns the answer's members but for the snapshot.
func (s *Server) body(v view, source string) readBody {
	b := readBody{Freshness: v.freshness}
	if v.entry != nil {
		b.LastUpdatedAt, b.LastCheckedAt = whenSet(v.UpdatedAt), whenSet(v.CheckedAt)
	}
	if v.reason != "" {
		b.tell(v.answer, func() queued { return s.wait(source) })
	}
	return b
}

func (s *Server) read(c echo.Context, who access.Client) error {
	e, f, err := s.entityOf(c)
	if err != nil {
		return err
	}
	patience, err := s.patience(c)
	if err != nil {
		return err
	}
	var v view
	if patience == 0 {
		v, err = s.look(c, who, e, f)
	} else {
		v, err = s.await(c, patience, e, func(*waiter) (view, bool, error) {
			v, err := s.look(c, who, e, f)
			return v, v.freshness != Fresh && v.answer.coming(), err
		})
	}
	if err != nil {
		return err
	}
	return s.answer(c, e, v)
}

// answer answers with what was found.
func (s *Server) answer(c echo.Context, e schemas.Entity, v view) error {
	s.metrics.read(e, v)
	switch v.freshness {
	case Fresh, Stale:
		return s.serve(c, e, v)
	case NotFound:
		return notFound(s.body(v, e.Source))
	case Updating:
	}
	return s.updating(c, e, v)
}

func notFound(body readBody) error {
	body.Freshness = NotFound
	return &readError{problem.New(http.StatusNotFound, "not-found", "The upstream says that there is no such entity."), &body}
}

// updating answers a read of which nothing can be served: 202 if a copy is on its
// way, 404 if the upstream denies the entity, 429 if the client asks for too much,
// 503 if nobody can fetch it now.
func (s *Server) updating(c echo.Context, e schemas.Entity, v view) error {
	body, a := s.body(v, e.Source), v.answer
	switch {
	case a.coming():
		after := time.Second
		if body.EstimatedWaitMs != nil {
			after = max(after, time.Duration(*body.EstimatedWaitMs)*time.Millisecond)
		}
		h := c.Response().Header()
		h.Set("Retry-After", strconv.Itoa(problem.Seconds(after)))
		h.Set("Cache-Control", "no-store")
		h.Set("Cache-Status", "freshet; fwd=miss")
		return c.Blob(http.StatusAccepted, "application/json", []byte(opening+"null"+tailOf(body)))
	case a.Reason == "HELD_"+schemas.HoldAbsent:
		return notFound(body)
	case a.refused != nil:
		return withBody(a.refused, &body)
	}
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "Nothing is stored yet, and it can't be fetched now: "+a.Reason+".")
	p.After = max(time.Second, a.Until.Sub(v.at))
	return &readError{p, &body}
}

// The headers of every snapshot, ready to be put into an answer.
var (
	jsonType       = []string{"application/json"}
	varyByEncoding = []string{"Accept-Encoding"}
)

// serve answers with the snapshot, or with 304 if the reader has it. It is the hot
// path: what two answers share is made once, in the entry.
func (s *Server) serve(c echo.Context, e schemas.Entity, v view) error {
	r, h := c.Request(), c.Response().Header()
	stamp := v.stamp(v.freshness, v.at)
	h["Etag"], h["Last-Modified"] = v.etag, v.lastModified
	h["Age"], h["Cache-Control"], h["Cache-Status"] = stamp.age, stamp.cacheControl, stamp.cacheStatus
	if vary := h["Vary"]; len(vary) > 0 { // by origin, where pages of others may read
		h["Vary"] = append(vary, varyByEncoding...)
	} else {
		h["Vary"] = varyByEncoding
	}
	if none := r.Header["If-None-Match"]; len(none) > 0 && matches(none, v.etag[0]) {
		c.Response().WriteHeader(http.StatusNotModified)
		return nil
	}
	as := accepted(r.Header["Accept-Encoding"])
	var first, second []byte
	if v.freshness == Fresh {
		b, err := v.entry.body(as)
		if err != nil {
			return err
		}
		first, h["Content-Length"] = b.bytes, b.length
	} else {
		var err error
		if first, second, err = v.parts(as, tailOf(s.body(v, e.Source))); err != nil {
			return err
		}
		h.Set("Content-Length", strconv.Itoa(len(first)+len(second)))
	}
	h["Content-Type"] = jsonType
	if as != identity {
		h["Content-Encoding"] = contentEncoding[as]
	}
	w := c.Response()
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	for _, part := range [][]byte{first, second} {
		if len(part) == 0 {
			continue
		}
		if _, err := w.Write(part); err != nil {
			s.log.Debug("the client left before its answer", "err", err)
			return nil
		}
	}
	return nil
}

// refresh asks for a refresh that begins after the request, and waits for it if
// the client wants to.
func (s *Server) refresh(c echo.Context, who access.Client) error {
	e, f, err := s.entityOf(c)
	if err != nil {
		return err
	}
	patience, err := s.patience(c)
	if err != nil {
		return err
	}
	if patience == 0 {
		_, err := s.insist(c, who, e, f)
		if err != nil {
			return err
		}
		return s.queued(c, e)
	}
	var asked Answer
	v, err := s.await(c, patience, e, func(w *waiter) (view, bool, error) {
		if asked.Number == 0 {
			asked, err = s.insist(c, who, e, f)
			return view{}, err == nil, err
		}
		found, err := s.memory.get(c.Request().Context(), e, f)
		if err != nil {
			return view{}, false, s.unreadable(c, e, err)
		}
		v := view{entry: found}
		if v.version() < asked.Number && w.settled.Load() < asked.Number {
			return view{}, true, nil // what was settled is something from before
		}
		// It has ended: in a snapshot, or in a failure of which a read tells.
		v, err = s.look(c, who, e, f)
		return v, false, err
	})
	if err != nil {
		return err
	}
	if v.at.IsZero() {
		return s.queued(c, e)
	}
	return s.answer(c, e, v)
}

// queued answers that a refresh is certain to come.
func (s *Server) queued(c echo.Context, e schemas.Entity) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusAccepted, struct {
		UpdateQueued bool `json:"updateQueued"`
		queued
	}{true, s.wait(e.Source)})
}

const (
	surePatience = time.Second
	sureEvery    = 50 * time.Millisecond
)

// insist asks until somebody's record is certain: a person who asks for a refresh
// must not lose it to a publish that fails.
func (s *Server) insist(c echo.Context, who access.Client, e schemas.Entity, f source.Facet) (Answer, error) {
	// Without a store the floor is unknown, and numbers rise all the same.
	known, err := s.memory.get(c.Request().Context(), e, f)
	if err != nil {
		s.log.Warn("refresh without a look at the store", "entity", e.String(), "err", err)
	}
	w := traced(c, Wish{Entity: e, Reason: schemas.UserRequest, Floor: view{entry: known}.version(), Cooldown: f.Cooldown})
	name := e.String()
	if _, err := s.meters.Begin(who.Name, name); err != nil {
		return Answer{}, err
	}
	a := s.untilSure(c, w)
	if a.Queued {
		return a, nil
	}
	s.meters.Ended(name)
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "The refresh could not be queued: "+a.Reason+".")
	if a.Reason == ReasonCooldown {
		p = problem.New(http.StatusTooManyRequests, "cooldown", "This entity was refreshed a moment ago.")
	}
	p.After = max(time.Second, time.Until(a.Until))
	return a, p
}

func (s *Server) untilSure(c echo.Context, w Wish) Answer {
	limit := time.NewTimer(surePatience)
	defer limit.Stop()
	again := time.NewTicker(sureEvery)
	defer again.Stop()
	ctx := context.WithoutCancel(c.Request().Context())
	for {
		a := s.request(ctx, []Wish{w})[0]
		if !a.Pending {
			return a
		}
		a.Reason = reasonPending
		select {
		case <-again.C:
		case <-limit.C:
			return a
		case <-c.Request().Context().Done():
			return a
		}
	}
}
