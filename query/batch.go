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
)

// maxKeys is how many keys one request may read.
const maxKeys = 100

// readMany answers for several keys of a facet, in their order: one look into the
// store, one question to Redis, and the stored bytes spliced together.
func (s *Server) readMany(c echo.Context, who access.Client) error {
	e, f, src, err := s.facetOf(c)
	if err != nil {
		return err
	}
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return problem.New(http.StatusBadRequest, "bad-keys", "The query is not percent-encoded properly.")
	}
	keys := query["key"]
	if len(keys) == 0 || len(keys) > maxKeys {
		return problem.New(http.StatusBadRequest, "bad-keys", fmt.Sprintf("Name 1 to %d keys, as in ?key=a&key=b; there are %d.", maxKeys, len(keys)))
	}
	if err := s.limiter.AllowRequests(who.Name, len(keys)-1); err != nil {
		return err
	}
	all := make([]schemas.Entity, len(keys))
	for i, key := range keys {
		e.Key = key
		if err := checkKey(e, src); err != nil {
			if p, ok := errors.AsType[*problem.HTTPError](err); ok {
				p.Detail = fmt.Sprintf("Key %d: %s", i+1, p.Detail)
			}
			return err
		}
		all[i] = e
	}
	views, err := s.readViews(c, who, src, all, f)
	if err != nil {
		return err
	}
	return s.writeBatch(c, who, all, views)
}

// readViews is look for many entities. It fails if none of those that are for the client
// to see can be looked at.
func (s *Server) readViews(c echo.Context, who access.Client, src Source, all []schemas.Entity, f source.Facet) ([]view, error) {
	views := make([]view, len(all))
	of, at := make([]schemas.Entity, 0, len(all)), make([]int, 0, len(all))
	for i, e := range all {
		if views[i] = notVisible; who.Sees(src.Visibility(e.Key)) {
			of, at = append(of, e), append(at, i)
		}
	}
	var wishes []UpdateRequest
	var wishing []int
	unread := 0
	for j, found := range s.cache.getAll(c.Request().Context(), who.Name, of, f) {
		i := at[j]
		if found.entry != nil && !who.Sees(found.Visibility) {
			continue
		}
		v := newView(found.entry, found.fallback, f)
		if _, refused := errors.AsType[*problem.HTTPError](found.err); refused {
			v.result = refusedResult(found.err)
			views[i] = v
			continue
		}
		if found.err != nil {
			if unread++; unread == len(of) {
				return nil, s.storeUnavailable(c, of[0], found.err)
			}
		}
		switch {
		case v.reason == "":
		case v.fallback || found.err != nil:
			v.result = EnqueueResult{Reason: ReasonDown}
		default:
			wishes, wishing = append(wishes, s.withTrace(c, UpdateRequest{Entity: all[i], Reason: v.reason, Floor: v.version()}.forClient(who))), append(wishing, i)
		}
		views[i] = v
	}
	if len(wishes) == 0 {
		return views, nil
	}
	for j, a := range s.enqueueMany(c, wishes) {
		views[wishing[j]].result = a
	}
	return views, nil
}

// enqueueMany is ask for many. If nothing is stored of one of them, all wait as long as that
// one.
func (s *Server) enqueueMany(c echo.Context, wishes []UpdateRequest) []EnqueueResult {
	urgent := slices.ContainsFunc(wishes, func(w UpdateRequest) bool { return w.Reason == schemas.CacheMiss })
	answered := make(chan []EnqueueResult, 1)
	go func() { answered <- s.recordRefusals(s.batcher.enqueueAll(wishes, urgent)) }()
	began := time.Now()
	limit := time.NewTimer(enqueueTimeout(urgent, acceptDeadline(0)))
	defer limit.Stop()
	select {
	case answers := <-answered:
		return answers
	case <-limit.C:
	case <-c.Request().Context().Done():
	}
	answers := repeatResult(wishes, reasonSlow)
	for j := range answers {
		answers[j].waited = time.Since(began)
	}
	return answers
}

// status is what a read of the key alone would have answered.
func (v view) status() (int, Freshness) {
	switch {
	case v.freshness == Fresh || v.freshness == Stale:
		return http.StatusOK, v.freshness
	case v.freshness == NotFound || v.result.Reason == "HELD_"+schemas.HoldAbsent:
		return http.StatusNotFound, NotFound
	case v.result.refreshExpected() && v.result.Reason != reasonSlow:
		return http.StatusAccepted, Updating
	case v.result.refused != nil:
		return http.StatusTooManyRequests, Updating
	}
	return http.StatusServiceUnavailable, Updating
}
