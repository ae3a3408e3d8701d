package query

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

const (
	// defaultItems and maxItems are the default and the maximum number of items in one response.
	defaultItems, maxItems = 100, 1000
	// streamedItems is the number of items that a stream reads from the database with one query.
	streamedItems = 500
	ndjson        = "application/x-ndjson"
)

// itemReader responds with items of collections.
type itemReader struct{ s *Server }

// isCollection reports whether a facet is a collection. The names are unescaped.
func isCollection(sources map[string]Source, sourceName, facet string) bool {
	src, known := sources[sourceName]
	if !known {
		return false
	}
	f, known := src.Facet(facet)
	return known && f.Collection != nil
}

// readCollection reads the collection that the request path names. Like a read of a snapshot, it
// enqueues an update request if one is needed. If there are no items to serve, it writes the response,
// and `done` is true.
func (r itemReader) readCollection(c echo.Context, client access.Client) (e schemas.Entity, v view, done bool, err error) {
	var f source.Facet
	if e, f, err = r.s.catalog.entityOf(c, client); err != nil {
		return e, v, false, err
	}
	if v, err = r.s.reader.readAndEnqueue(c, client, e, f, acceptDeadline(0)); err != nil {
		return e, v, false, err
	}
	if v.freshness != store.Fresh && v.freshness != store.Stale {
		return e, v, true, r.s.responder.respond(c, client, e, v)
	}
	r.s.readCounter.read(v.count)
	return e, v, false, nil
}

// itemRange returns the range of items that the query string describes.
func itemRange(q url.Values) (r collection.Range, err error) {
	r.Limit = defaultItems
	if text := q.Get("limit"); text != "" {
		if r.Limit, err = strconv.Atoi(text); err != nil || r.Limit < 1 || r.Limit > maxItems {
			return r, problem.New(http.StatusBadRequest, problem.BadLimit, fmt.Sprintf("limit must be a whole number from 1 to %d.", maxItems))
		}
	}
	if text := q.Get("changedSince"); text != "" {
		if r.ChangedSince, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return r, problem.New(http.StatusBadRequest, problem.BadFilter, "changedSince must be a time (RFC 3339), as in 2026-11-26T10:00:00Z.")
		}
	}
	if text := q.Get("after"); text != "" {
		version, id, _ := strings.Cut(text, ".")
		decoded, decodeErr := base64.RawURLEncoding.DecodeString(id)
		if r.AfterVersion, err = strconv.ParseInt(version, 10, 64); err != nil || decodeErr != nil {
			return r, problem.New(http.StatusBadRequest, problem.BadCursor, "after must be the value of next in an earlier response.")
		}
		r.AfterID = string(decoded)
	}
	r.WithDeleted = q.Has("changedSince") || q.Has("after")
	return r, nil
}

// afterItem returns the value of the query parameter after that selects the items following i.
func afterItem(i collection.Item) string {
	return strconv.FormatInt(i.Version, 10) + "." + base64.RawURLEncoding.EncodeToString([]byte(i.ID))
}

// list responds with one page of items, or with all items as a stream of JSON lines.
func (r itemReader) list(c echo.Context, client access.Client) error {
	e, v, done, err := r.readCollection(c, client)
	if done || err != nil {
		return err
	}
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return problem.New(http.StatusBadRequest, problem.BadFilter, "The query string has an invalid percent-encoding.")
	}
	span, err := itemRange(query)
	if err != nil {
		return err
	}
	h := c.Response().Header()
	tag := fnv.New64a()
	_, _ = tag.Write([]byte(c.Request().URL.RawQuery))
	etag := fmt.Sprintf(`W/"%s-%x"`, v.tag(), tag.Sum64())
	h.Add("Vary", "Accept") // Add keeps a value Origin of Vary, which the CORS middleware may have set
	if r.setValidator(c, e, v, etag) {
		return c.NoContent(http.StatusNotModified)
	}
	if strings.Contains(c.Request().Header.Get("Accept"), ndjson) {
		return r.stream(c, client, e, span)
	}
	limit := span.Limit
	span.Limit++ // read one more item, to know whether there is a next page
	items, err := r.readFor(c, client, e, span)
	if err != nil {
		return err
	}
	more := len(items) > limit
	items = items[:min(len(items), limit)]
	next := afterItem(collection.Item{Version: span.AfterVersion, ID: span.AfterID})
	if len(items) > 0 {
		next = afterItem(items[len(items)-1])
	}
	if more {
		query.Set("after", next)
		h.Set("Link", "<"+c.Request().URL.EscapedPath()+"?"+query.Encode()+`>; rel="next"`)
	}
	body := []byte(`{"items":[`)
	for n, i := range items {
		if n > 0 {
			body = append(body, ',')
		}
		body = appendItem(body, i)
	}
	body = fmt.Appendf(body, `],"next":%q,"more":%t,`, next, more)
	state, err := json.Marshal(r.s.responder.bodyOf(v, e.Source))
	if err != nil {
		panic(err) // encoding a struct of plain fields can't fail
	}
	body = append(body, state[1:]...) // append the members of the object state to the object body
	held, err := r.s.responder.budget.reserve(client.BoundName(), int64(len(body)))
	if err != nil {
		return err
	}
	defer held.releaseAll()
	h["Content-Type"] = jsonType
	return r.write(c, body)
}

// setValidator sets the headers ETag, Cache-Control, Cache-Status, Age and Freshet-Degraded, as in a
// response with a snapshot. It reports whether the client already has the current response
// (If-None-Match).
func (r itemReader) setValidator(c echo.Context, e schemas.Entity, v view, etag string) (unchanged bool) {
	h, headers := c.Response().Header(), v.timeHeaders(v.freshness, v.at)
	h.Set("Etag", etag)
	h["Cache-Control"], h["Cache-Status"] = headers.cacheControl, headers.cacheStatus
	if headers.age != nil {
		h["Age"] = headers.age
	}
	v.setDegraded(h, r.s.responder.bodyOf(v, e.Source).Refresh)
	none := c.Request().Header["If-None-Match"]
	return len(none) > 0 && matchesETag(none, etag)
}

// write responds with status 200 and a complete body.
func (r itemReader) write(c echo.Context, body []byte) error {
	c.Response().Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.Response().WriteHeader(http.StatusOK)
	if c.Request().Method != http.MethodHead {
		_ = r.s.responder.write(c, body) // the error is ignored, because responder.write has logged it
	}
	return nil
}

// read reads a range of items from the database.
func (r itemReader) read(ctx context.Context, e schemas.Entity, span collection.Range) ([]collection.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return withBreaker(r.s.cache.breaker, func() ([]collection.Item, error) { return r.s.cache.store.Items(ctx, e, span) })
}

// readFor reads a range of items for a response. The size of the items counts toward the client's limit
// of requests, like the size of snapshots that must be decompressed.
func (r itemReader) readFor(c echo.Context, client access.Client, e schemas.Entity, span collection.Range) ([]collection.Item, error) {
	items, err := r.read(c.Request().Context(), e, span)
	if err != nil {
		return nil, r.s.reader.storeUnavailable(c, e, err)
	}
	size := 0
	for _, i := range items {
		size += len(i.Content)
	}
	if n := size / unpackedPerRequest; n > 0 {
		return items, r.s.limiter.AllowRequests(client.Name, n)
	}
	return items, nil
}

// stream writes all items of a range, one JSON object per line. An item that changes during the stream
// is written again, so a client must keep only the last line of each id. If the database fails, the
// connection is closed before the end of the body.
func (r itemReader) stream(c echo.Context, client access.Client, e schemas.Entity, span collection.Range) error {
	leave, err := r.s.waits.acquireWaitSlot(client)
	if err != nil {
		return err
	}
	defer leave()
	span.Limit = streamedItems
	items, err := r.readFor(c, client, e, span)
	if err != nil {
		return err
	}
	c.Response().Header().Set("Content-Type", ndjson)
	c.Response().WriteHeader(http.StatusOK)
	if c.Request().Method == http.MethodHead {
		return nil
	}
	var lines []byte
	for len(items) > 0 {
		lines = lines[:0]
		for _, i := range items {
			lines = append(appendItem(lines, i), '\n')
		}
		if r.s.responder.write(c, lines) != nil {
			return nil
		}
		last := items[len(items)-1]
		span.AfterVersion, span.AfterID = last.Version, last.ID
		if items, err = r.readFor(c, client, e, span); err != nil {
			r.s.log.Warn("stream of items ended before its last item", "entity", e.String(), "err", err)
			_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Unix(1, 0)) // so the last chunk of the body is not sent, and the client knows that items are missing
			return nil
		}
	}
	return nil
}

// one responds with the item that the request path names.
func (r itemReader) one(c echo.Context, client access.Client) error {
	id, err := pathParam(c, "item")
	if err != nil {
		return err
	}
	e, v, done, err := r.readCollection(c, client)
	if done || err != nil {
		return err
	}
	items, err := r.readFor(c, client, e, collection.Range{ID: id, Limit: 1})
	if err != nil {
		return err
	}
	if len(items) == 0 {
		return problem.New(http.StatusNotFound, problem.NotFound, "The collection has no item with this id.")
	}
	if r.setValidator(c, e, v, fmt.Sprintf(`W/"%x-%d"`, items[0].Hash[:12], items[0].Version)) {
		return c.NoContent(http.StatusNotModified)
	}
	c.Response().Header()["Content-Type"] = jsonType
	return r.write(c, appendItem(nil, items[0]))
}

// changedItems is the part of an event that says which items of a collection have changed since the
// previous event of the stream.
type changedItems struct {
	Items     []changedItem `json:"items,omitempty"`
	MoreItems bool          `json:"moreItems,omitempty"` // more items have changed than Items contains
}

type changedItem struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted,omitempty"`
}

// maxChangedItems is the maximum number of items in one event.
const maxChangedItems = 100

// changedSince returns the items that have changed after a version of the collection. It returns none
// for version 0, because the client has not read an item yet. If the database fails, it sets only
// MoreItems.
func (r itemReader) changedSince(ctx context.Context, e schemas.Entity, version int64) (c changedItems) {
	if version == 0 {
		return c
	}
	items, err := r.read(ctx, e, collection.Range{AfterVersion: version + 1, WithDeleted: true, Limit: maxChangedItems + 1})
	if err != nil || len(items) > maxChangedItems {
		items, c.MoreItems = items[:min(len(items), maxChangedItems)], true
	}
	for _, i := range items {
		c.Items = append(c.Items, changedItem{i.ID, i.Deleted})
	}
	return c
}

// appendItem appends an item as a JSON object. The content is canonical JSON, so it is appended
// unchanged.
func appendItem(b []byte, i collection.Item) []byte {
	id, err := json.Marshal(i.ID)
	if err != nil {
		panic(err) // encoding a string can't fail
	}
	b = append(append(b, `{"id":`...), id...)
	b = strconv.AppendInt(append(b, `,"version":`...), i.Version, 10)
	b = i.ChangedAt.UTC().AppendFormat(append(b, `,"changedAt":"`...), time.RFC3339Nano)
	b = hex.AppendEncode(append(b, `","hash":"`...), i.Hash[:])
	if i.Deleted {
		return append(b, `","deleted":true}`...)
	}
	return append(append(append(b, `","item":`...), i.Content...), '}')
}
