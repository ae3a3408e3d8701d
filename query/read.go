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
	"github.com/freshet/freshet/store"
)

// view is the state of an entity at one moment, with the result of the update request that a
// read enqueued.
type view struct {
	*entry          // nil: nothing is stored
	fallback   bool // the store did not respond in time; the entry may be outdated
	notVisible bool // the client may not see the entity
	freshness  store.Freshness
	reason     schemas.Reason // reason of the update request that is needed; empty: none is needed
	result     EnqueueResult
	at         time.Time
}

// readVisible reads an entity from the cache or the store. It returns errNotVisible if the client
// may not see the stored snapshot. The visibility of that snapshot may differ from the visibility
// that a fetch would have now.
func (s *Server) readVisible(c echo.Context, client access.Client, e schemas.Entity, f source.Facet) (view, error) {
	found, fallback, err := s.cache.get(c.Request().Context(), client.Name, e, f)
	if _, refused := errors.AsType[*problem.HTTPError](err); refused {
		return view{}, withBody(err, &readBody{Freshness: store.Updating})
	}
	if err != nil {
		return view{}, s.storeUnavailable(c, e, err)
	}
	if found != nil && !client.Sees(found.Visibility) {
		return notVisible, errNotVisible
	}
	return newView(found, fallback, f), nil
}

func newView(found *entry, fallback bool, f source.Facet) view {
	v := view{entry: found, fallback: fallback, at: time.Now()}
	stored := &store.State{} // nothing is stored
	if found != nil {
		stored = &found.State
	}
	v.freshness, v.reason = store.FreshnessOf(stored, store.Lifetimes{FreshFor: f.FreshFor, NotFoundFor: f.NotFoundFor, KeepFor: f.KeepFor}, v.at)
	return v
}

// readAndEnqueue reads an entity and enqueues an update request if one is due. If nothing is
// stored, it waits until the request is accepted, but at most until the deadline. It enqueues
// nothing for a fallback, an outdated cache entry that is served while the store can't be read: the
// entry remains stale, so each settle message would cause a read, and the read would enqueue the
// next refresh.
func (s *Server) readAndEnqueue(c echo.Context, client access.Client, e schemas.Entity, f source.Facet, deadline time.Time) (view, error) {
	v, err := s.readVisible(c, client, e, f)
	switch {
	case err != nil || v.reason == "":
	case v.fallback:
		v.result = EnqueueResult{Reason: ReasonDown}
	default:
		v.result = s.enqueueRead(c, client, UpdateRequest{Entity: e, Reason: v.reason, Floor: v.version()}, deadline)
	}
	return v, err
}

// readAgain reads an entity once more after a wait has timed out, because a notification may have
// been lost. waited is the result of the last read during the wait.
func (s *Server) readAgain(c echo.Context, client access.Client, e schemas.Entity, f source.Facet, waited view) view {
	v, err := s.readVisible(c, client, e, f)
	if err != nil {
		return waited
	}
	v.result = waited.result
	return v
}

// storeUnavailable returns the problem of a read that fails because the store can't be read and
// nothing is cached.
func (s *Server) storeUnavailable(c echo.Context, e schemas.Entity, err error) error {
	level := slog.LevelDebug // WARN at most once per second, because in an outage every read fails
	if now, last := time.Now().UnixNano(), s.lastStoreWarning.Load(); now-last >= int64(time.Second) && s.lastStoreWarning.CompareAndSwap(last, now) {
		level = slog.LevelWarn
	}
	s.log.Log(c.Request().Context(), level, "store read failed", "entity", e.String(), "correlation_id", correlationOf(c), "err", err)
	p := problem.New(http.StatusServiceUnavailable, "store-unavailable", "Snapshots can't be read now. Retry later.")
	p.After = time.Second
	return p
}

func (v view) version() int64 {
	if v.entry == nil {
		return 0
	}
	return v.Version
}

// bodyOf returns the fields of the response, except the snapshot.
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

func (s *Server) read(c echo.Context, client access.Client) error {
	e, f, wait, err := s.entityAndWait(c, client)
	if err != nil {
		return err
	}
	if wait == 0 {
		v, err := s.readAndEnqueue(c, client, e, f, acceptDeadline(0))
		if err != nil {
			return err
		}
		return s.respond(c, client, e, v)
	}
	deadline := acceptDeadline(wait)
	v, timedOut, err := s.waitUntil(c, client, wait, e, func(*waiter) (view, bool, error) {
		v, err := s.readAndEnqueue(c, client, e, f, deadline)
		return v, v.reason != "" && (v.fallback || v.result.refreshExpected()), err
	})
	if err != nil {
		return err
	}
	if timedOut {
		v = s.readAgain(c, client, e, f, v)
	}
	return s.respond(c, client, e, v)
}

// respond writes the response of a read.
func (s *Server) respond(c echo.Context, client access.Client, e schemas.Entity, v view) error {
	s.metrics.observeRead(e, v)
	switch v.freshness {
	case store.Fresh, store.Stale:
		err := s.respondSnapshot(c, client, e, v)
		if err == nil {
			s.readCounter.read(v.count)
		}
		return err
	case store.NotFound:
		return notFoundError(s.bodyOf(v, e.Source))
	case store.Updating:
	}
	return s.respondUpdating(c, e, v)
}

func notFoundError(body readBody) error {
	body.Freshness = store.NotFound
	return &readError{problem.New(http.StatusNotFound, "not-found", "The upstream has no such entity."), &body}
}

// respondUpdating responds to a read if no snapshot can be served: 202 if a refresh is queued,
// 404 if the upstream has no such entity, 429 if a limit of the client is exceeded, 503 if no
// refresh can be queued now.
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
		return notFoundError(body)
	case a.refused != nil:
		return withBody(a.refused, &body)
	}
	if strings.HasPrefix(a.Reason, "HELD_") {
		s.metrics.heldReads.Inc() // the upstream has failed for the entity, so the SLO for reads excludes this response
	}
	p := problem.New(http.StatusServiceUnavailable, "not-queued", "Nothing is stored, and no refresh can be queued now ("+a.Reason+"): "+a.failureDetail()+".")
	p.After = max(time.Second, a.Until.Sub(v.at))
	return &readError{p, &body}
}

// Headers of each snapshot response, allocated once.
var (
	jsonType       = []string{"application/json"}
	varyByEncoding = []string{"Accept-Encoding"}
)

// respondSnapshot responds with the snapshot, or with 304 if the client already has it. Most
// requests end here, so everything that several responses can share is in the cache entry.
func (s *Server) respondSnapshot(c echo.Context, client access.Client, e schemas.Entity, v view) error {
	r, h := c.Request(), c.Response().Header()
	as := bestEncoding(r.Header["Accept-Encoding"])
	unchanged := notModified(r, v.entry)
	var first, second []byte
	var length []string
	if !unchanged {
		tail := v.freshTail
		if v.freshness == store.Stale {
			tail = marshalTail(s.bodyOf(v, e.Source))
		}
		b := v.bodyFor(as, tail)
		if n := v.extraRequests(b); n > 0 {
			if err := s.limiter.AllowRequests(client.Name, n); err != nil {
				return err
			}
		}
		held, err := s.responses.reserve(client.BoundName(), v.responseSize(b))
		if err != nil {
			return err
		}
		defer held.releaseAll()
		if first, second, err = v.parts(b, tail); err != nil {
			return err
		}
		if length = b.length; second != nil {
			length = []string{strconv.Itoa(len(first) + len(second))}
		}
	}
	headers := v.timeHeaders(v.freshness, v.at)
	h["Etag"], h["Last-Modified"] = v.etag, v.lastModified
	h["Age"], h["Cache-Control"], h["Cache-Status"] = headers.age, headers.cacheControl, headers.cacheStatus
	if vary := h["Vary"]; len(vary) > 0 { // the CORS middleware has set Vary: Origin, which must be kept
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
				s.log.Debug("client disconnected before the response", "err", err)
				return nil
			}
		}
	}
	return nil
}
