package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/klauspost/compress/gzip"
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
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return problem.New(http.StatusBadRequest, "bad-keys", "The query is not percent-encoded properly.")
	}
	keys := query["key"]
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
	views, err := s.lookAtMany(c, who, src, all, f)
	if err != nil {
		return err
	}
	return s.answerMany(c, all, views)
}

// lookAtMany is look for many entities. It fails if none of those that are for the client
// to see can be looked at.
func (s *Server) lookAtMany(c echo.Context, who access.Client, src Source, all []schemas.Entity, f source.Facet) ([]view, error) {
	views := make([]view, len(all))
	of, at := make([]schemas.Entity, 0, len(all)), make([]int, 0, len(all))
	for i, e := range all {
		if views[i] = unseen; who.Sees(src.Visibility(e.Key)) {
			of, at = append(of, e), append(at, i)
		}
	}
	begun := make([]bool, len(all))
	var wishes []Wish
	var wishing []int
	unread := 0
	for j, found := range s.memory.getAll(c.Request().Context(), of, f) {
		i := at[j]
		if found.entry != nil && !who.Sees(found.Visibility) {
			continue
		}
		v := judged(found.entry, found.older, f)
		if found.err != nil {
			if unread++; unread == len(of) {
				return nil, s.unreadable(c, of[0], found.err)
			}
		}
		switch {
		case v.reason == "":
		case v.older || found.err != nil:
			v.answer = Answer{Reason: ReasonDown}
		default:
			var err error
			if begun[i], err = s.meters.Begin(who.Name, all[i].String()); err != nil {
				v.answer = refusal(err)
			} else {
				wishes, wishing = append(wishes, s.traced(c, Wish{Entity: all[i], Reason: v.reason, Floor: v.version()}.of(who))), append(wishing, i)
			}
		}
		views[i] = v
	}
	if len(wishes) == 0 {
		return views, nil
	}
	for j, a := range s.askMany(c, wishes, func(j int, a Answer) {
		if begun[wishing[j]] && !a.coming() {
			s.meters.Abandon(who.Name, wishes[j].Entity.String())
		}
	}) {
		views[wishing[j]].answer = a
	}
	return views, nil
}

// askMany is ask for many; account is told of each answer, also of those that come
// too late.
func (s *Server) askMany(c echo.Context, wishes []Wish, account func(int, Answer)) []Answer {
	ctx := context.WithoutCancel(c.Request().Context())
	answered := make(chan []Answer, 1)
	go func() {
		v, err := surviving(func() (any, error) { return s.request(ctx, wishes), nil })()
		answers, ok := v.([]Answer)
		if !ok {
			s.log.Error("asking for refreshes failed", "err", err)
			answers = all(wishes, ReasonDown)
		}
		for j, a := range answers {
			account(j, a)
		}
		answered <- answers
	}()
	patience := time.NewTimer(readPatience)
	defer patience.Stop()
	select {
	case answers := <-answered:
		return answers
	case <-patience.C:
		return all(wishes, reasonSlow)
	}
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
	m := &many{as: as, text: []byte(`{"items":[`)}
	for i, v := range views {
		if !v.unseen {
			s.metrics.read(all[i], v)
		}
		it := item{Key: all[i].Key, readBody: s.body(v, all[i].Source)}
		it.Status, it.Freshness = v.status()
		if err := m.add(v, &it); err != nil {
			return err
		}
		if it.Status == http.StatusOK {
			s.tallies.read(v.tally)
		}
	}
	m.text = append(m.text, "]}"...)
	m.flush()
	return s.send(c, m)
}

// many is an answer to a batch: pieces of memory that other answers share, and what
// stands between them. Nothing that is large is copied.
type many struct {
	as     encoding
	text   []byte // not among the pieces yet
	pieces [][]byte
	size   int
}

func (m *many) flush() {
	piece := m.text
	if m.as == zstandard {
		piece = appendFrame(nil, string(m.text))
	}
	m.append(piece)
	m.text = nil
}

func (m *many) append(piece []byte) {
	m.pieces = append(m.pieces, piece)
	m.size += len(piece)
}

// add adds an item. One whose payload can't be read fails alone, and is told so.
func (m *many) add(v view, it *item) error {
	if len(m.pieces) > 0 || len(m.text) > len(`{"items":[`) {
		m.text = append(m.text, ',')
	}
	m.text = append(m.text, opening...)
	snapshot, err := v.snapshot(m.as)
	switch {
	case it.Status != http.StatusOK:
		snapshot = nil
	case err != nil:
		it.Status, snapshot = http.StatusInternalServerError, nil
	}
	if snapshot == nil {
		m.text = append(m.text, "null"...)
	} else {
		m.flush()
		m.append(snapshot)
	}
	rest, err := json.Marshal(it)
	if err != nil {
		return err
	}
	rest[0] = ','
	m.text = append(m.text, rest...)
	return nil
}

// send writes an answer to a batch piece by piece; for gzip it is compressed on its
// way.
func (s *Server) send(c echo.Context, m *many) error {
	h := c.Response().Header()
	h.Set("Cache-Control", "no-store")
	h.Add("Vary", "Accept-Encoding")
	h["Content-Type"] = jsonType
	if m.as != identity {
		h["Content-Encoding"] = contentEncoding[m.as]
	}
	if m.as != gzipped {
		h.Set("Content-Length", strconv.Itoa(m.size))
	}
	s.extend(c, 0)
	c.Response().WriteHeader(http.StatusOK)
	if c.Request().Method == http.MethodHead {
		return nil
	}
	var out io.Writer = c.Response()
	if m.as == gzipped {
		z := gzip.NewWriter(out)
		defer func() { _ = z.Close() }() // the client has left otherwise
		out = z
	}
	for _, piece := range m.pieces {
		if _, err := out.Write(piece); err != nil {
			s.log.Debug("the client left before its answer", "err", err)
			return nil
		}
	}
	return nil
}
