package query

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// maxKeys is the maximum number of keys in one request.
const maxKeys = 100

// readMany responds with the snapshots of several keys of one facet, in the order of the keys.
// It reads the store once and enqueues all update requests together.
func (s *Server) readMany(c echo.Context, client access.Client) error {
	e, f, src, err := s.catalog.facetOf(c)
	if err != nil {
		return err
	}
	if f.Raw != nil {
		return problem.New(http.StatusBadRequest, problem.RawFacet, fmt.Sprintf("The content of %s/%s is %s, which can't be a part of a JSON response. Read each key by itself.", e.Source, e.Facet, f.Raw.MediaType))
	}
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return problem.New(http.StatusBadRequest, problem.BadKeys, "The query string has an invalid percent-encoding.")
	}
	keys := query["key"]
	if len(keys) == 0 || len(keys) > maxKeys {
		return problem.New(http.StatusBadRequest, problem.BadKeys, fmt.Sprintf("Send 1 to %d keys, as in ?key=a&key=b. The query string has %d.", maxKeys, len(keys)))
	}
	if err := s.limiter.AllowRequests(client.Name, len(keys)-1); err != nil {
		return err
	}
	all, views := make([]schemas.Entity, len(keys)), make([]view, len(keys))
	valid, indexes := make([]schemas.Entity, 0, len(keys)), make([]int, 0, len(keys))
	for i, key := range keys {
		e.Key = f.FoldKey(key)
		all[i] = e
		if err := checkKey(e, src); err != nil {
			views[i] = badKey(err)
		} else {
			valid, indexes = append(valid, e), append(indexes, i)
		}
	}
	read, err := s.reader.readViews(c, client, src, valid, f)
	if err != nil {
		return err
	}
	for j, i := range indexes {
		views[i] = read[j]
	}
	return s.responder.writeBatch(c, client, all, views)
}

// badKey returns the view of a read whose key is invalid, with the reason err.
func badKey(err error) view {
	return view{freshness: store.Updating, reason: schemas.CacheMiss, result: EnqueueResult{Reason: reasonBadKey, refused: err}}
}

// readViews reads several entities. With one call it enqueues all update requests that are due. It
// fails only if none of the entities that the client may see can be read.
func (rd *reader) readViews(c echo.Context, client access.Client, src Source, all []schemas.Entity, f source.Facet) ([]view, error) {
	views := make([]view, len(all))
	visible, indexOf := make([]schemas.Entity, 0, len(all)), make([]int, 0, len(all))
	for i, e := range all {
		if views[i] = notVisible; client.Sees(src.Visibility(e.Key)) {
			visible, indexOf = append(visible, e), append(indexOf, i)
		}
	}
	var requests []UpdateRequest
	var indexes []int
	unreadable := 0
	for j, found := range rd.cache.getAll(c.Request().Context(), client.Name, visible, f) {
		i := indexOf[j]
		if found.entry != nil && !client.Sees(found.Visibility) {
			continue
		}
		v := newView(found.entry, found.fallback, f)
		if _, refused := errors.AsType[*problem.HTTPError](found.err); refused {
			v.result = refusedResult(found.err)
			views[i] = v
			continue
		}
		if found.err != nil {
			if unreadable++; unreadable == len(visible) {
				return nil, rd.storeUnavailable(c, visible[0], found.err)
			}
		}
		switch {
		case v.reason == "":
		case v.fallback || found.err != nil:
			v.result = EnqueueResult{Reason: ReasonDown}
		default:
			requests, indexes = append(requests, rd.requester.tracing.withTrace(c, UpdateRequest{Entity: all[i], Reason: v.reason, Floor: v.version()}.forClient(client))), append(indexes, i)
		}
		views[i] = v
	}
	if len(requests) == 0 {
		return views, nil
	}
	for j, a := range rd.requester.enqueueMany(c, requests) {
		views[indexes[j]].result = a
	}
	return views, nil
}

// enqueueMany enqueues several update requests and waits for their results: up to acceptTimeout
// if one of them is a cache miss, else up to staleTimeout. If the results do not arrive in that
// time, every result has reasonSlow.
func (q *requester) enqueueMany(c echo.Context, requests []UpdateRequest) []EnqueueResult {
	urgent := slices.ContainsFunc(requests, func(r UpdateRequest) bool { return r.Reason == schemas.CacheMiss })
	done := make(chan []EnqueueResult, 1)
	go func() {
		done <- q.enqueueComplete(requests, func(complete []UpdateRequest) []EnqueueResult {
			return q.recordRefusals(q.batcher.enqueueAll(complete, urgent))
		})
	}()
	began := time.Now()
	limit := time.NewTimer(enqueueTimeout(urgent, acceptDeadline(0)))
	defer limit.Stop()
	select {
	case results := <-done:
		return results
	case <-limit.C:
	case <-c.Request().Context().Done():
	}
	results := repeatResult(requests, reasonSlow)
	for j := range results {
		results[j].waited = time.Since(began)
	}
	return results
}

// status returns the HTTP status and the freshness that a separate read of the entity would return.
func (v view) status() (int, store.Freshness) {
	switch {
	case v.freshness == store.Fresh || v.freshness == store.Stale:
		return http.StatusOK, v.freshness
	case v.freshness == store.NotFound || v.result.Reason == HeldReason(schemas.HoldNotFound):
		return http.StatusNotFound, store.NotFound
	case v.result.refreshExpected() && v.result.Reason != reasonSlow:
		return http.StatusAccepted, store.Updating
	case v.result.refused != nil:
		return statusOf(v.result.refused), freshnessMissing
	case v.result.refreshExpected():
		return http.StatusServiceUnavailable, store.Updating
	}
	return http.StatusServiceUnavailable, freshnessMissing
}
