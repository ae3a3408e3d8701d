package query

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// maxKeptText is the maximum size in bytes of an unpacked document that a batch keeps in the
// cache. A larger document is unpacked for each batch, so that a few batches do not evict thousands
// of stored snapshots.
const maxKeptText = 64 << 10

// item is the response for one key of a batch, without its snapshot. Status is the HTTP status that
// a separate read of the key would return.
type item struct {
	Key    string `json:"key"`
	Status int    `json:"status"`
	readBody
	Detail string `json:"detail,omitempty"` // why the key is invalid, if the status is 400

	view view
	rest []byte // fields of the item after the snapshot, as JSON
}

// marshal sets `rest` to the JSON of the fields that follow the snapshot.
func (it *item) marshal() {
	text, err := json.Marshal(it)
	if err != nil {
		panic(err) // encoding a struct of plain fields can't fail
	}
	text[0] = ','
	it.rest = text
}

// writeBatch writes {"items":[…]} item by item. The document of an item is unpacked just before
// it is written, and released after that, so that memory holds only one unpacked document of a
// batch.
func (rs *responder) writeBatch(c echo.Context, client access.Client, all []schemas.Entity, views []view) error {
	as := bestEncoding(c.Request().Header["Accept-Encoding"])
	items := make([]item, len(views))
	var stored, largest int64
	cost := 0
	for i, v := range views {
		it := &items[i]
		*it = item{Key: all[i].Key, readBody: rs.bodyOf(v, all[i].Source), view: v}
		it.Status, _ = v.status()
		if p, ok := errors.AsType[*problem.HTTPError](v.result.refused); ok && it.Status == http.StatusBadRequest {
			it.Detail = p.Detail
		} else if !v.notVisible {
			rs.readLog.noteRead(c, all[i], v, it.Status)
		}
		it.marshal()
		if it.Status == http.StatusOK {
			stored += v.responseSize(&v.bodies[zstandard])
			cost += v.extraBatchRequests(as)
			if as != zstandard {
				largest = max(largest, v.responseSize(&v.bodies[identity]))
			}
		}
	}
	if cost > 0 {
		if err := rs.limiter.AllowRequests(client.Name, cost); err != nil {
			return err
		}
	}
	held, err := rs.budget.reserve(client.BoundName(), stored+largest)
	if err != nil {
		return err
	}
	defer held.releaseAll()
	h := c.Response().Header()
	h.Set("Cache-Control", "no-store")
	h.Add("Vary", "Accept-Encoding")
	h["Content-Type"] = jsonType
	if as != identity {
		h["Content-Encoding"] = contentEncoding[as]
	}
	if as == zstandard { // zstd documents are sent as stored, so the size of the batch can be calculated in advance
		size := 0
		count := writerFunc(func(part []byte) error { size += len(part); return nil })
		_ = writeItems(as, count, items, func(*item) {}) // a writer that only counts bytes returns no error
		h.Set("Content-Length", strconv.Itoa(size))
	}
	c.Response().WriteHeader(http.StatusOK)
	out := writerFunc(func(part []byte) error { return rs.write(c, part) })
	if c.Request().Method == http.MethodHead {
		as, out = identity, func([]byte) error { return nil }
	}
	_ = writeItems(as, out, items, func(it *item) { // writing fails only if the client has disconnected
		if it.Status == http.StatusOK {
			rs.readCounter.read(it.view.count)
			held.release(it.view.responseSize(&it.view.bodies[zstandard]))
		}
		it.view = view{} // drop the view, so that the garbage collector can free an evicted snapshot
	})
	return nil
}

// extraBatchRequests returns the number of requests that are counted for the client because of one
// item of a batch, in addition to the request for the item's key. A gzip batch is compressed as a
// whole, so a document counts in every gzip batch, even if its own gzip body is cached.
func (e *entry) extraBatchRequests(as encoding) int {
	if as == gzipped {
		return e.Size / compressedPerRequest
	}
	return e.extraRequests(&e.bodies[as])
}

// writerFunc is a function that implements io.Writer. Write calls it with the bytes.
type writerFunc func([]byte) error

func (w writerFunc) Write(part []byte) (int, error) {
	if err := w(part); err != nil {
		return 0, err
	}
	return len(part), nil
}

// writeItems writes all items to `out` in a content encoding, one after the other. After each item
// it calls written(item).
func writeItems(as encoding, out io.Writer, items []item, written func(*item)) error {
	if as == gzipped {
		return gzipTo(out, func(w io.Writer) error { return writeItems(identity, w, items, written) })
	}
	b := batch{as: as, out: out}
	return b.write(items, written)
}

// batch writes the items as zstd or identity. The JSON text between two snapshots is buffered, and
// written before the next snapshot. In zstd this text is a separate frame between the stored frames
// of the snapshots.
type batch struct {
	as   encoding
	out  io.Writer
	text []byte // text of the response that is not written yet
	buf  []byte // buffer that is reused for the document of each item
}

func (b *batch) write(items []item, written func(*item)) error {
	b.text = append(b.text, `{"items":[`...)
	for i := range items {
		if i > 0 {
			b.text = append(b.text, ',')
		}
		if err := b.item(&items[i]); err != nil {
			return err
		}
		written(&items[i])
	}
	b.text = append(b.text, "]}"...)
	return b.flush()
}

// item writes one item. If its payload can't be decoded, only this item fails, with status 500.
func (b *batch) item(it *item) error {
	var part []byte
	if it.Status == http.StatusOK {
		var err error
		if part, err = b.snapshot(it.view.entry); err != nil {
			part, it.Status = nil, http.StatusInternalServerError
			it.marshal()
		}
	}
	rest := it.rest
	if part == nil {
		b.text, rest = append(b.text, '{'), rest[1:]
	} else {
		if err := b.flush(); err != nil {
			return err
		}
		if _, err := b.out.Write(part); err != nil {
			return err
		}
	}
	b.text = append(b.text, rest...)
	return nil
}

// snapshot returns the encoded start of an item: the text {"snapshot": and the snapshot itself.
func (b *batch) snapshot(e *entry) ([]byte, error) {
	if b.as == identity && !e.bodies[identity].made.Load() && e.Size > maxKeptText {
		text, err := e.appendText(append(b.buf[:0], bodyPrefix...))
		b.buf = text
		return text, err
	}
	made := &e.bodies[b.as]
	if err := e.encodeOnce(made); err != nil {
		return nil, err
	}
	return made.bytes[:made.snapshotEnd], nil
}

// flush writes the buffered text.
func (b *batch) flush() error {
	if len(b.text) == 0 {
		return nil
	}
	part := b.text
	if b.as == zstandard {
		part = appendFrame(nil, string(b.text))
	}
	b.text = b.text[:0]
	_, err := b.out.Write(part)
	return err
}
