package query

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// view is what one look at an entity found, and what became of the wish it led to.
type view struct {
	*entry          // nil: nothing is stored
	fallback   bool // it may be overtaken: the store did not answer
	notVisible bool // nothing of it is for this client
	freshness  Freshness
	reason     schemas.Reason // why a refresh is wanted; empty: none is
	result     EnqueueResult
	at         time.Time
}

// readVisible finds an entity and judges it, if what is stored is for the client to see: that
// may have been fetched within another visibility than what would be fetched now.
func (s *Server) readVisible(c echo.Context, who access.Client, e schemas.Entity, f source.Facet) (view, error) {
	found, older, err := s.cache.get(c.Request().Context(), who.Name, e, f)
	if _, refused := errors.AsType[*problem.HTTPError](err); refused {
		return view{}, withBody(err, &readBody{Freshness: Updating})
	}
	if err != nil {
		return view{}, s.storeUnavailable(c, e, err)
	}
	if found != nil && !who.Sees(found.Visibility) {
		return notVisible, errNotVisible
	}
	return newView(found, older, f), nil
}

func newView(found *entry, older bool, f source.Facet) view {
	v := view{entry: found, fallback: older, at: time.Now()}
	v.freshness, v.reason = freshnessOf(found, f, v.at)
	return v
}

// readAndEnqueue sees an entity and asks for a refresh if one is due; if nothing is stored, it
// waits until the deadline for that to be accepted. Nothing is asked for on
// behalf of what may be overtaken: while the store can't be read every settle would
// lead to another fetch.
func (s *Server) readAndEnqueue(c echo.Context, who access.Client, e schemas.Entity, f source.Facet, deadline time.Time) (view, error) {
	v, err := s.readVisible(c, who, e, f)
	switch {
	case err != nil || v.reason == "":
	case v.fallback:
		v.result = EnqueueResult{Reason: ReasonDown}
	default:
		v.result = s.enqueueRead(c, who, UpdateRequest{Entity: e, Reason: v.reason, Floor: v.version()}, deadline)
	}
	return v, err
}

// readAgain sees an entity once more for one who has waited in vain: what was
// settled may not have been told.
func (s *Server) readAgain(c echo.Context, who access.Client, e schemas.Entity, f source.Facet, waited view) view {
	v, err := s.readVisible(c, who, e, f)
	if err != nil {
		return waited
	}
	v.result = waited.result
	return v
}

// storeUnavailable is the problem of a store that can't be read, where nothing is
// remembered either.
func (s *Server) storeUnavailable(c echo.Context, e schemas.Entity, err error) error {
	level := slog.LevelDebug // once a second is enough: in an outage every reader comes here
	if now, last := time.Now().UnixNano(), s.lastStoreWarning.Load(); now-last >= int64(time.Second) && s.lastStoreWarning.CompareAndSwap(last, now) {
		level = slog.LevelWarn
	}
	s.log.Log(c.Request().Context(), level, "the store can't be read", "entity", e.String(), "correlation_id", correlationOf(c), "err", err)
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

// bodyOf returns the answer's members but for the snapshot.
func (s *Server) bodyOf(v view, source string) readBody {
	b := readBody{Freshness: v.freshness}
	if v.entry != nil {
		b.LastUpdatedAt, b.LastCheckedAt = optionalTime(v.UpdatedAt), optionalTime(v.CheckedAt)
	}
	if v.reason != "" {
		b.setResult(v.result, func() waitEstimate { return s.estimateWait(source) })
	}
	return b
}

func (s *Server) read(c echo.Context, who access.Client) error {
	e, f, patience, err := s.entityAndWait(c, who)
	if err != nil {
		return err
	}
	if patience == 0 {
		v, err := s.readAndEnqueue(c, who, e, f, acceptDeadline(0))
		if err != nil {
			return err
		}
		return s.respond(c, who, e, v)
	}
	deadline := acceptDeadline(patience)
	v, inVain, err := s.waitUntil(c, who, patience, e, func(*waiter) (view, bool, error) {
		v, err := s.readAndEnqueue(c, who, e, f, deadline)
		return v, v.reason != "" && (v.fallback || v.result.refreshExpected()), err
	})
	if err != nil {
		return err
	}
	if inVain {
		v = s.readAgain(c, who, e, f, v)
	}
	return s.respond(c, who, e, v)
}

// respond answers with what was found.
func (s *Server) respond(c echo.Context, who access.Client, e schemas.Entity, v view) error {
	s.metrics.observeRead(e, v)
	switch v.freshness {
	case Fresh, Stale:
		err := s.respondSnapshot(c, who, e, v)
		if err == nil {
			s.readCounter.read(v.count)
		}
		return err
	case NotFound:
		return notFound(s.bodyOf(v, e.Source))
	case Updating:
	}
	return s.respondUpdating(c, e, v)
}

func notFound(body readBody) error {
	body.Freshness = NotFound
	return &readError{problem.New(http.StatusNotFound, "not-found", "The upstream says that there is no such entity."), &body}
}

// respondUpdating answers a read of which nothing can be served: 202 if a copy is known to
// be on its way, 404 if the upstream denies the entity, 429 if the client asks for too much,
// 503 if nobody can fetch it now.
func (s *Server) respondUpdating(c echo.Context, e schemas.Entity, v view) error {
	body, a := s.bodyOf(v, e.Source), v.result
	switch {
	case a.refreshExpected() && a.Reason != reasonSlow:
		after := time.Second
		if body.EstimatedWaitMs != nil {
			after = max(after, time.Duration(*body.EstimatedWaitMs)*time.Millisecond)
		}
		h := c.Response().Header()
		h.Set("Retry-After", strconv.Itoa(problem.Seconds(after)))
		h.Set("Cache-Control", "no-store")
		h.Set("Cache-Status", "freshet; fwd=miss")
		return c.Blob(http.StatusAccepted, "application/json", []byte(bodyPrefix+"null"+marshalTail(body)))
	case a.Reason == "HELD_"+schemas.HoldAbsent:
		return notFound(body)
	case a.refused != nil:
		return withBody(a.refused, &body)
	}
	if strings.HasPrefix(a.Reason, "HELD_") {
		s.metrics.heldReads.Inc() // no fault of ours, to those who watch
	}
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "Nothing is stored yet, and it can't be fetched now ("+a.Reason+"): "+a.failureDetail()+".")
	p.After = max(time.Second, a.Until.Sub(v.at))
	return &readError{p, &body}
}

// The headers of every snapshot, ready to be put into an answer.
var (
	jsonType       = []string{"application/json"}
	varyByEncoding = []string{"Accept-Encoding"}
)

// respondSnapshot answers with the snapshot, or with 304 if the reader has it. It is the hot
// path: what two answers share is made once, in the entry.
func (s *Server) respondSnapshot(c echo.Context, who access.Client, e schemas.Entity, v view) error {
	r, h := c.Request(), c.Response().Header()
	as := accepted(r.Header["Accept-Encoding"])
	unchanged := notModified(r, v.entry)
	var first, second []byte
	var length []string
	if !unchanged {
		if n := v.cost(as); n > 0 {
			if err := s.limiter.AllowRequests(who.Name, n); err != nil {
				return err
			}
		}
		held, err := s.responses.reserve(who.BoundName(), v.responseSize(as))
		if err != nil {
			return err
		}
		defer held.releaseAll()
	}
	switch {
	case unchanged:
	case v.freshness == Fresh:
		b, err := v.entry.body(as)
		if err != nil {
			return err
		}
		first, length = b.bytes, b.length
	default:
		var err error
		if first, second, err = v.parts(as, marshalTail(s.bodyOf(v, e.Source))); err != nil {
			return err
		}
		length = []string{strconv.Itoa(len(first) + len(second))}
	}
	stamp := v.timeHeaders(v.freshness, v.at)
	h["Etag"], h["Last-Modified"] = v.etag, v.lastModified
	h["Age"], h["Cache-Control"], h["Cache-Status"] = stamp.age, stamp.cacheControl, stamp.cacheStatus
	if vary := h["Vary"]; len(vary) > 0 { // by origin, where pages of others may read
		h["Vary"] = append(vary, varyByEncoding...)
	} else {
		h["Vary"] = varyByEncoding
	}
	if unchanged {
		c.Response().WriteHeader(http.StatusNotModified)
		return nil
	}
	h["Content-Type"], h["Content-Length"] = jsonType, length
	if as != identity {
		h["Content-Encoding"] = contentEncoding[as]
	}
	w := c.Response()
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	for _, part := range [2][]byte{first, second} {
		if len(part) > maxUncounted {
			if s.write(c, part) != nil {
				return nil
			}
		} else if len(part) > 0 {
			if _, err := w.Write(part); err != nil {
				s.log.Debug("the client left before its answer", "err", err)
				return nil
			}
		}
	}
	return nil
}
