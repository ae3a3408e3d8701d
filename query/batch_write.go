package query

import (
	"encoding/json"
	"hash/crc32"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
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

	view view
	rest []byte // the fields above as JSON, written after the snapshot
}

// marshal sets rest to the JSON of the fields that follow the snapshot.
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
func (s *Server) writeBatch(c echo.Context, client access.Client, all []schemas.Entity, views []view) error {
	as := bestEncoding(c.Request().Header["Accept-Encoding"])
	items := make([]item, len(views))
	var stored, largest int64
	cost := 0
	for i, v := range views {
		if !v.notVisible {
			s.metrics.observeRead(all[i], v)
		}
		it := &items[i]
		*it = item{Key: all[i].Key, readBody: s.bodyOf(v, all[i].Source), view: v}
		it.Status, it.Freshness = v.status()
		it.marshal()
		if it.Status == http.StatusOK {
			stored += v.responseSize(zstandard)
			cost += v.extraRequests(as)
			if as != zstandard {
				largest = max(largest, v.responseSize(as))
			}
		}
	}
	if cost > 0 {
		if err := s.limiter.AllowRequests(client.Name, cost); err != nil {
			return err
		}
	}
	held, err := s.responses.reserve(client.BoundName(), stored+largest)
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
		b := batch{as: as, out: func(part []byte) error { size += len(part); return nil }}
		_ = b.write(items, func(*item) {}) // this writer only counts bytes and does not fail
		h.Set("Content-Length", strconv.Itoa(size))
	}
	c.Response().WriteHeader(http.StatusOK)
	b := batch{as: as, out: func(part []byte) error { return s.write(c, part) }}
	if c.Request().Method == http.MethodHead {
		b.out = func([]byte) error { return nil }
	}
	_ = b.write(items, func(it *item) { // an error means that the client disconnected
		if it.Status == http.StatusOK {
			s.readCounter.read(it.view.count)
			held.release(it.view.responseSize(zstandard))
		}
		it.view = view{} // allows the garbage collector to free an evicted snapshot
	})
	return nil
}

// batch writes items in one content encoding. The JSON text between the snapshots is buffered, and
// written before the next snapshot:
//
//	zstd      stored frames, between frames of text
//	gzip      one member: the cached deflated snapshots, between stored blocks of text
//	identity  text
type batch struct {
	as   encoding
	out  func([]byte) error
	text []byte // text that is not written yet
	gzip gzipPrefix
	buf  []byte // buffer that is reused for the document of each item
}

// write passes all items to out, one after the other. After each item it calls written(item).
func (b *batch) write(items []item, written func(*item)) error {
	if b.as == gzipped {
		if err := b.out([]byte(gzipHeader)); err != nil {
			return err
		}
	}
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
	if b.as != gzipped {
		return b.flush()
	}
	return b.out(b.gzip.close(nil, string(b.text)))
}

// item writes one item. If its payload can't be decoded, only this item fails, with status 500.
func (b *batch) item(it *item) error {
	var part []byte
	var open gzipPrefix
	if it.Status == http.StatusOK {
		var err error
		if part, open, err = b.snapshot(it.view.entry); err != nil {
			part, it.Status = nil, http.StatusInternalServerError
			it.marshal()
		}
	}
	if part == nil {
		b.text = append(b.text, bodyPrefix+"null"...)
	} else {
		if err := b.flush(); err != nil {
			return err
		}
		if err := b.out(part); err != nil {
			return err
		}
		b.gzip.join(open)
	}
	b.text = append(b.text, it.rest...)
	return nil
}

// snapshot returns the start of an item in the batch's encoding, up to the end of its snapshot.
// For gzip the member header is left out, because the whole batch is one gzip member.
func (b *batch) snapshot(e *entry) ([]byte, gzipPrefix, error) {
	if b.as == identity && !e.bodies[identity].made.Load() && e.Size > maxKeptText {
		text, err := e.appendText(append(b.buf[:0], bodyPrefix...))
		b.buf = text
		return text, gzipPrefix{}, err
	}
	made, err := e.body(b.as)
	if err != nil {
		return nil, gzipPrefix{}, err
	}
	part := made.bytes[:made.tail]
	if b.as == gzipped {
		part = part[len(gzipHeader):]
	}
	return part, made.prefix, nil
}

// flush writes the buffered text.
func (b *batch) flush() error {
	if len(b.text) == 0 {
		return nil
	}
	part := b.text
	switch b.as {
	case zstandard:
		part = appendFrame(nil, string(b.text))
	case identity, encodings:
	case gzipped:
		part = appendStored(nil, string(b.text), false)
		b.gzip.join(gzipPrefix{crc32.ChecksumIEEE(b.text), uint32(len(b.text))}) //nolint:gosec // texts are short
	}
	b.text = b.text[:0]
	return b.out(part)
}

// join updates the checksum and the size in open after data was appended to its gzip member. other
// has the checksum and the size of the appended data.
func (open *gzipPrefix) join(other gzipPrefix) {
	open.crc = combineCRC(open.crc, other.crc, other.size)
	open.size += other.size // modulo 2^32, as the gzip format requires
}
