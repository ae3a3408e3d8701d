package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// keysMost is how many keys one request may read.
const keysMost = 100

// item is an answer in a batch but for its snapshot; Status is what a read of the
// key alone would have answered.
type item struct {
	Key    string `json:"key"`
	Status int    `json:"status"`
	readBody
}

// readMany answers for several keys of a facet, in their order: one look into the
// store, one question to Redis, and the stored bytes spliced together.
func (s *Server) readMany(c echo.Context, who access.Client) error {
	e, f, src, err := s.facetOf(c)
	if err != nil {
		return err
	}
	keys := c.QueryParams()["key"]
	if len(keys) == 0 || len(keys) > keysMost {
		return problem.New(http.StatusBadRequest, "bad-keys", fmt.Sprintf("Name 1 to %d keys, as in ?key=a&key=b; there are %d.", keysMost, len(keys)))
	}
	if err := s.meters.Request(who.Name, len(keys)-1); err != nil {
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
	views, err := s.lookAtMany(c, who, all, f)
	if err != nil {
		return err
	}
	return s.answerMany(c, all, views)
}

// lookAtMany is look for many entities.
func (s *Server) lookAtMany(c echo.Context, who access.Client, all []schemas.Entity, f source.Facet) ([]view, error) {
	found, err := s.memory.getAll(c.Request().Context(), all, f)
	if err != nil {
		return nil, s.unreadable(c, all[0], err)
	}
	now := time.Now()
	views := make([]view, len(all))
	var wishes []Wish
	var wishing []int
	for i, e := range all {
		v := view{entry: found[i], at: now}
		v.freshness, v.reason = judge(v.entry, f, now)
		if v.reason != "" {
			w := Wish{Entity: e, Reason: v.reason, Floor: v.version()}
			a, refused := s.count(who, w, e.String())
			if !refused {
				wishes, wishing = append(wishes, traced(c, w)), append(wishing, i)
			}
			v.answer = a
		}
		views[i] = v
	}
	if len(wishes) == 0 {
		return views, nil
	}
	ctx := context.WithoutCancel(c.Request().Context())
	answered := make(chan []Answer, 1)
	go func() { answered <- s.request(ctx, wishes) }()
	patience := time.NewTimer(readPatience)
	defer patience.Stop()
	select {
	case answers := <-answered:
		for j, i := range wishing {
			if views[i].answer = answers[j]; !answers[j].coming() {
				s.meters.Ended(all[i].String())
			}
		}
	case <-patience.C:
		for _, i := range wishing {
			views[i].answer = Answer{Reason: reasonSlow}
		}
	}
	return views, nil
}

// status is what a read of the key alone would have answered.
func (v view) status() (int, Freshness) {
	switch {
	case v.freshness == Fresh || v.freshness == Stale:
		return http.StatusOK, v.freshness
	case v.freshness == NotFound || v.answer.Reason == "HELD_"+schemas.HoldAbsent:
		return http.StatusNotFound, NotFound
	case v.answer.coming():
		return http.StatusAccepted, Updating
	case v.answer.refused != nil:
		return http.StatusTooManyRequests, Updating
	}
	return http.StatusServiceUnavailable, Updating
}

// answerMany writes {"items":[…]}. For a client that takes zstd the stored frames
// go out as they are, between frames of what stands around them.
func (s *Server) answerMany(c echo.Context, all []schemas.Entity, views []view) error {
	as := accepted(c.Request().Header["Accept-Encoding"])
	var out, text []byte
	flush := func() {
		if as == zstandard {
			out = appendFrame(out, string(text))
		} else {
			out = append(out, text...)
		}
		text = text[:0]
	}
	text = append(text, `{"items":[`...)
	for i, v := range views {
		s.metrics.read(all[i], v)
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, opening...)
		it := item{Key: all[i].Key, readBody: s.body(v, all[i].Source)}
		it.Status, it.Freshness = v.status()
		if it.Status != http.StatusOK {
			text = append(text, "null"...)
		} else {
			flush()
			_, err := v.entry.body(zstandard)
			if as == zstandard {
				out = append(out, v.payload...)
			} else if err == nil {
				out, err = v.appendText(out)
			}
			if err != nil {
				return err
			}
		}
		rest, err := json.Marshal(it)
		if err != nil {
			return err
		}
		rest[0] = ','
		text = append(text, rest...)
	}
	text = append(text, "]}"...)
	flush()
	h := c.Response().Header()
	h.Set("Cache-Control", "no-store")
	h.Add("Vary", "Accept-Encoding")
	if as == gzipped {
		begun, open := appendGzip(nil, out)
		out = open.close(begun, "")
	}
	if as != identity {
		h["Content-Encoding"] = contentEncoding[as]
	}
	h.Set("Content-Length", strconv.Itoa(len(out)))
	return c.Blob(http.StatusOK, "application/json", out)
}
