package query

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// view is the state of an entity at one moment. It also has the result of the update request that the
// read has enqueued.
type view struct {
	*entry          // cached snapshot or not-found result; nil means that nothing is stored
	fallback   bool // true if the database failed or was too slow, so the entry may be outdated
	static     bool // true if the entry is a static file
	waited     bool // true if the read has waited for its full wait, and no fetch has ended
	patient    bool // true if the read has waited because of the facet's setting `wait`
	notVisible bool // true if the client may not see the entity
	freshness  store.Freshness
	reason     schemas.Reason // reason for which an update request is needed; empty means that none is needed
	result     EnqueueResult
	degraded   RefreshReason // reason for which a static file is served; empty means that degradedReason decides
	at         time.Time
}

// read responds to a read of one entity.
func (s *Server) read(c echo.Context, client access.Client) error {
	e, f, wait, err := s.catalog.entityAndWait(c, client)
	if err != nil {
		return err
	}
	v := view{}
	patient := wait == unsetWait && f.Wait > 0
	if wait <= 0 {
		if v, err = s.reader.readVisible(c, client, e, f); err != nil {
			return err
		}
		if patient && v.freshness == store.Updating {
			wait = f.Wait
		} else {
			v, wait = s.reader.enqueueDue(c, client, e, v, acceptDeadline(0)), 0
		}
	}
	if wait > 0 {
		var timedOut bool
		deadline := acceptDeadline(wait)
		v, timedOut, err = s.waits.waitUntil(c, client, wait, e, func(*waiter) (view, bool, error) {
			v, err := s.reader.readAndEnqueue(c, client, e, f, deadline)
			return v, v.reason != "" && (v.fallback || v.result.refreshExpected()), err
		})
		if err != nil {
			return err
		}
		if timedOut {
			v = s.reader.readAgain(c, client, e, f, v)
		}
		v.waited, v.patient = timedOut, patient
	}
	return s.responder.respond(c, client, e, s.reader.orStatic(v, e, f))
}

// reader reads entities, and enqueues the update requests that the reads make due.
type reader struct {
	cache       *snapshotCache
	requester   *requester
	fromStatic  prometheus.Counter
	log         *slog.Logger
	lastWarning atomic.Int64 // time of the last warning about store failures, in Unix nanoseconds
}

// readAndEnqueue reads an entity and enqueues an update request if one is due. If nothing is
// stored, it waits until the request is accepted, but at most until the deadline. For a fallback
// (an outdated cache entry that is served while the store can't be read) it enqueues nothing. A
// fallback stays stale after a fetch: each settle message would cause another read and thus another
// update request.
func (rd *reader) readAndEnqueue(c echo.Context, client access.Client, e schemas.Entity, f source.Facet, deadline time.Time) (view, error) {
	v, err := rd.readVisible(c, client, e, f)
	if err != nil {
		return v, err
	}
	return rd.enqueueDue(c, client, e, v, deadline), nil
}

// enqueueDue returns the view with the result of its update request, if one is due.
func (rd *reader) enqueueDue(c echo.Context, client access.Client, e schemas.Entity, v view, deadline time.Time) view {
	switch {
	case v.reason == "":
	case v.fallback:
		v.result = EnqueueResult{Reason: ReasonDown}
	default:
		v.result = rd.requester.enqueueRead(c, client, UpdateRequest{Entity: e, Reason: v.reason, Floor: v.version()}, deadline)
	}
	return v
}

// readVisible reads an entity from the cache or the store. It returns errNotVisible if the client
// may not see the stored snapshot. The visibility of that snapshot may differ from the visibility
// that a fetch would have now.
func (rd *reader) readVisible(c echo.Context, client access.Client, e schemas.Entity, f source.Facet) (view, error) {
	found, fallback, err := rd.cache.get(c.Request().Context(), client.Name, e, f)
	if file := rd.cache.static.get(e, f); file != nil && (err != nil || found == file.entry) {
		return viewOfStatic(file, err, f), nil
	}
	if _, refused := errors.AsType[*problem.HTTPError](err); refused {
		return view{}, withBody(err, &readBody{Freshness: freshnessMissing})
	}
	if err != nil {
		return view{}, rd.storeUnavailable(c, e, err)
	}
	if found != nil && !client.Sees(found.Visibility) {
		return notVisible, errNotVisible
	}
	return newView(found, fallback, f), nil
}

func newView(found *entry, fallback bool, f source.Facet) view {
	if found != nil && found.HasContent() && found.MediaType != f.MediaType() {
		found, fallback = nil, false // the facet had another media type when the content was stored; it must be fetched again
	}
	v := view{entry: found, fallback: fallback, at: time.Now()}
	stored := &store.State{} // nothing is stored
	if found != nil {
		stored = &found.State
	}
	v.freshness, v.reason = store.FreshnessOf(stored, LifetimesOf(f), v.at)
	return v
}

// LifetimesOf returns the lifetimes of a facet.
func LifetimesOf(f source.Facet) store.Lifetimes {
	return store.Lifetimes{FreshFor: f.FreshFor, NotFoundFor: f.NotFoundFor, KeepFor: f.KeepFor, AliasNotFoundFor: f.AliasNotFoundFor()}
}

func (v view) version() int64 {
	if v.entry == nil {
		return 0
	}
	return v.Version
}

// readAgain reads an entity once more after a wait has timed out, because a notification may have
// been lost. `waited` is the result of the last read during the wait.
func (rd *reader) readAgain(c echo.Context, client access.Client, e schemas.Entity, f source.Facet, waited view) view {
	v, err := rd.readVisible(c, client, e, f)
	if err != nil {
		return waited
	}
	v.result = waited.result
	return v
}

// storeUnavailable returns the problem of a read that fails because the store can't be read and
// nothing is cached.
func (rd *reader) storeUnavailable(c echo.Context, e schemas.Entity, err error) error {
	level := slog.LevelDebug // WARN at most once per second, because in an outage every read fails
	if now, last := time.Now().UnixNano(), rd.lastWarning.Load(); now-last >= int64(time.Second) && rd.lastWarning.CompareAndSwap(last, now) {
		level = slog.LevelWarn
	}
	rd.log.Log(c.Request().Context(), level, "store read failed", "entity", e.String(), "correlation_id", correlationOf(c), "err", err)
	p := problem.New(http.StatusServiceUnavailable, problem.StoreUnavailable, "Snapshots can't be read now. Retry later.")
	p.After = time.Second
	return p
}

// entityAndWait returns the entity, its facet, and how long the client wants to wait.
func (cat *catalog) entityAndWait(c echo.Context, client access.Client) (e schemas.Entity, f source.Facet, wait time.Duration, err error) {
	// parseWait comes first because it sets a response header: the header must be the same
	// whether or not the client may see the entity.
	if wait, err = parseWait(c); err == nil {
		e, f, err = cat.entityOf(c, client)
	}
	return e, f, wait, err
}

// parseWait returns how long the client wants to wait for a refresh, from ?wait=5s or the header
// Prefer: wait=5 (RFC 7240). It returns 0 if the client does not want to wait, and unsetWait if the
// request has neither. For the header it sets Preference-Applied.
func parseWait(c echo.Context) (time.Duration, error) {
	r := c.Request()
	if r.URL.RawQuery != "" {
		if query := r.URL.Query(); query.Has("wait") {
			text := query.Get("wait")
			wait, err := time.ParseDuration(text)
			if seconds, plain := strconv.Atoi(text); plain == nil {
				wait, err = time.Duration(min(seconds, int(maxWait/time.Second)))*time.Second, nil
			}
			if err != nil || wait < 0 {
				return 0, problem.New(http.StatusBadRequest, problem.BadWait, "wait must be a duration, as in 5s or 500ms.")
			}
			return min(wait, maxWait), nil
		}
	}
	for _, header := range r.Header["Prefer"] {
		for preference := range strings.SplitSeq(header, ",") {
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value, _, _ = strings.Cut(value, ";")
			seconds, err := strconv.Atoi(strings.Trim(strings.TrimSpace(value), `"`))
			if err != nil || seconds < 0 {
				return unsetWait, nil // an invalid header Prefer is ignored
			}
			wait := time.Duration(min(seconds, int(maxWait/time.Second))) * time.Second
			c.Response().Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait/time.Second)))
			return wait, nil
		}
	}
	return unsetWait, nil
}

// unsetWait means that a request names no wait. Then a read waits as long as its facet's setting says.
const unsetWait time.Duration = -1

// entityOf returns the entity in the request path, and its facet. It returns errNotVisible if
// the client may not see the content that a fetch would return now.
func (cat *catalog) entityOf(c echo.Context, client access.Client) (schemas.Entity, source.Facet, error) {
	e, f, src, err := cat.facetOf(c)
	if err != nil {
		return e, f, err
	}
	if e.Key, err = pathParam(c, "key"); err != nil {
		return e, f, err
	}
	if key := f.FoldKey(e.Key); key != e.Key { // the key is not canonical: the header Content-Location has the canonical URL
		e.Key = key
		c.Response().Header().Set("Content-Location", "/v1/"+e.Source+"/"+e.Facet+"/"+url.PathEscape(key))
	}
	if err := checkKey(e, src); err != nil {
		return e, f, err
	}
	cat.tracing.traceEntity(c, e)
	if !client.Sees(src.Visibility(e.Key)) {
		return e, f, errNotVisible
	}
	return e, f, nil
}

// facetOf returns the source and the facet in the request path, and an entity with their names
// and without a key.
func (cat *catalog) facetOf(c echo.Context) (e schemas.Entity, f source.Facet, src Source, err error) {
	if e.Source, err = pathParam(c, "source"); err != nil {
		return e, f, nil, err
	}
	if e.Facet, err = pathParam(c, "facet"); err != nil {
		return e, f, nil, err
	}
	src, known := cat.sources[e.Source]
	if !known {
		return e, f, nil, unknownSource()
	}
	if f, known = src.Facet(e.Facet); !known {
		return e, f, nil, problem.New(http.StatusNotFound, problem.NoSuchFacet, fmt.Sprintf("Source %s has no such facet. GET /v1/%s lists its facets.", e.Source, e.Source))
	}
	return e, f, src, nil
}

// pathParam returns one unescaped segment of the path. The router matches the escaped path, so
// this is the only place that unescapes.
func pathParam(c echo.Context, name string) (string, error) {
	text, err := url.PathUnescape(c.Param(name))
	if err != nil {
		return "", problem.New(http.StatusBadRequest, problem.BadKey, fmt.Sprintf("The %s has an invalid percent-encoding.", name))
	}
	return text, nil
}

func checkKey(e schemas.Entity, src Source) error {
	err := schemas.CheckKey(e.Key)
	if err == nil {
		err = src.CheckKey(e.Facet, e.Key)
	}
	if err != nil {
		return problem.New(http.StatusBadRequest, problem.BadKey, toSentence(err))
	}
	return nil
}

// toSentence formats an error as a sentence with a capital letter and a full stop.
func toSentence(err error) string {
	text := err.Error()
	return string(text[0]-'a'+'A') + text[1:] + "."
}
