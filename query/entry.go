package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// A response is {"snapshot": …, …}: bodyPrefix, the stored bytes of the snapshot, and a tail
// with all other fields. The response of a raw snapshot is only its content.
const bodyPrefix = `{"snapshot":`

// entry is a cached snapshot with everything that several responses can share: the FRESH body in
// each encoding, and the headers that change once per second.
type entry struct {
	store.State
	payload []byte // the stored bytes of the snapshot; in memory they are a part of the zstd body
	facet   source.Facet
	// readAt is the time at which the load from the store began, in nanoseconds since the cache was
	// created (snapshotCache.now). 0 means that a settle message has made the entry outdated.
	readAt atomic.Int64

	etags                     [encodings][]string // for raw content: a strong entity tag for each encoding, because the bytes differ
	lastModified, contentType []string
	prefix, freshTail         string
	bodies                    [encodings]body
	staleGzip                 atomic.Pointer[body] // the last STALE response body in gzip; nil means that there was none
	// cached headers of responses with FRESH content, and of responses with STALE content; not used for
	// immutable content
	headerCache [2]atomic.Pointer[timeHeaders]
	onGrow      func(*entry) // function that is called after a body was encoded
	count       *readCount   // counts the reads; nil means that reads are not counted
}

// body is a complete response body in one encoding. It is encoded at first use.
type body struct {
	as          encoding
	tail        string // the JSON text that follows the snapshot
	once        sync.Once
	made        atomic.Bool // true if the following fields are valid
	bytes       []byte
	err         error
	snapshotEnd int // offset in bytes at which the part after the snapshot begins; 0 for gzip, which is compressed as a whole
	length      []string
}

var errNotEncoded = errors.New("encoding the response panicked")

func newEntry(s store.Snapshot, f source.Facet, readAt int64, of *readCount, grown func(*entry)) *entry {
	e := &entry{State: s.State, payload: s.Payload, facet: f, count: of, onGrow: grown}
	e.readAt.Store(readAt)
	if s.HasContent() {
		e.lastModified = []string{s.UpdatedAt.UTC().Format(http.TimeFormat)}
		e.setForm()
		for as := range e.bodies {
			e.bodies[as].as, e.bodies[as].tail = encoding(as), e.freshTail
		}
		e.bodies[zstandard].once.Do(func() { e.spliceFrames(&e.bodies[zstandard]) })
		e.bodies[zstandard].made.Store(true)
	}
	return e
}

// setForm sets the parts of the response that depend on the form of the content: JSON or raw.
func (e *entry) setForm() {
	tag := fmt.Sprintf(`"%x-%x"`, e.Hash[:12], uint32(e.ExtractVersion)) //nolint:gosec // the low 32 bits suffice
	if e.isRaw() {
		e.contentType = []string{e.MediaType}
		for as, name := range contentEncoding {
			e.etags[as] = []string{tag}
			if name != nil {
				e.etags[as] = []string{strings.TrimSuffix(tag, `"`) + "-" + name[0] + `"`}
			}
		}
		return
	}
	e.contentType, e.prefix = jsonType, bodyPrefix
	e.freshTail = marshalTail(readBody{Freshness: store.Fresh, LastUpdatedAt: schemas.OptionalTime(e.UpdatedAt), LastCheckedAt: schemas.OptionalTime(e.CheckedAt)})
	weak := []string{"W/" + tag}
	for as := range e.etags {
		e.etags[as] = weak
	}
}

// isRaw reports whether the content is served unchanged.
func (e *entry) isRaw() bool { return e.MediaType != "" }

// tag returns the entity tag without its quotes, for all encodings of JSON and for the identity
// encoding of raw content.
func (e *entry) tag() string { return strings.Trim(e.etags[identity][0], `W/"`) }

// spliceFrames builds the zstd body: the stored frame, unchanged, between two frames of text.
func (e *entry) spliceFrames(b *body) {
	if e.Encoding != store.Zstd {
		b.err = fmt.Errorf("payload of %s has encoding %q; this release serves %q", e.Entity, e.Encoding, store.Zstd)
		return
	}
	if e.isRaw() {
		b.bytes, b.snapshotEnd = e.payload, len(e.payload)
		b.length = []string{strconv.Itoa(len(b.bytes))}
		return
	}
	b.bytes = appendFrame(make([]byte, 0, len(bodyPrefix)+len(e.payload)+len(e.freshTail)+32), bodyPrefix)
	start := len(b.bytes)
	b.bytes = append(b.bytes, e.payload...)
	b.snapshotEnd = len(b.bytes)
	e.payload = b.bytes[start:b.snapshotEnd:b.snapshotEnd]
	b.bytes = appendFrame(b.bytes, e.freshTail)
	b.length = []string{strconv.Itoa(len(b.bytes))}
}

// weight returns the memory that the entry uses, in bytes.
func (e *entry) weight() int64 {
	const fixed = 2 << 10
	weight := int64(fixed)
	for as := range e.bodies {
		weight += e.bodies[as].weight()
	}
	if stale := e.staleGzip.Load(); stale != nil {
		weight += stale.weight()
	}
	if e.count != nil {
		weight += readCountWeight
	}
	return weight
}

// marshalTail returns the JSON text that follows the snapshot in a response.
func marshalTail(b readBody) string {
	text, err := json.Marshal(b)
	if err != nil {
		panic(err) // encoding a struct of plain fields can't fail
	}
	text[0] = ','
	return string(text)
}

// weight returns the memory of the encoded body, in bytes.
func (b *body) weight() int64 {
	if !b.made.Load() {
		return 0
	}
	return int64(cap(b.bytes))
}

// bodyFor returns the cached body from which a response with this tail (the JSON after the
// snapshot) can be built. For zstd and identity this is the FRESH body, because another tail can be
// written after its snapshot. A gzip body is compressed as a whole, so the entry keeps one FRESH
// body and the last STALE body.
func (e *entry) bodyFor(as encoding, tail string) *body {
	if as != gzipped || tail == e.freshTail {
		return &e.bodies[as]
	}
	for {
		last := e.staleGzip.Load()
		if last != nil && last.tail == tail {
			return last
		}
		next := &body{as: gzipped, tail: tail}
		if e.staleGzip.CompareAndSwap(last, next) {
			return next
		}
	}
}

// encodeOnce encodes the body at the first call. Each call returns the error of that encoding.
func (e *entry) encodeOnce(b *body) error {
	b.once.Do(func() {
		b.err = errNotEncoded // err keeps this value if encode panics
		b.err = e.encode(b)
		b.length = []string{strconv.Itoa(len(b.bytes))}
		b.made.Store(true)
		e.onGrow(e)
	})
	return b.err
}

// encode builds the gzip or identity body.
func (e *entry) encode(b *body) error {
	text, err := e.appendText(make([]byte, 0, e.Size))
	if err != nil {
		return err
	}
	if b.as == gzipped {
		b.bytes, err = appendGzip(make([]byte, 0, len(text)/6+512), []byte(e.prefix), text, []byte(b.tail))
		return err
	}
	b.bytes = append(make([]byte, 0, len(e.prefix)+len(text)+len(b.tail)), e.prefix...)
	b.bytes = append(b.bytes, text...)
	b.snapshotEnd = len(b.bytes)
	b.bytes = append(b.bytes, b.tail...)
	return nil
}

// appendText appends the unpacked content of the snapshot.
func (e *entry) appendText(dst []byte) ([]byte, error) {
	return store.Snapshot{State: e.State, Payload: e.payload}.Decode(dst)
}

// parts returns a response body with this tail (the JSON after the snapshot) in two pieces. If the
// body has another tail, the first piece ends before that tail, and the second piece is the new
// tail.
func (e *entry) parts(b *body, tail string) (first, second []byte, err error) {
	if err := e.encodeOnce(b); err != nil {
		return nil, nil, err
	}
	switch {
	case tail == b.tail:
		return b.bytes, nil, nil
	case b.as == zstandard:
		return b.bytes[:b.snapshotEnd], appendFrame(nil, tail), nil
	default:
		return b.bytes[:b.snapshotEnd], []byte(tail), nil
	}
}

// responseSize returns the memory in bytes that a response holds until its client has read it.
func (e *entry) responseSize(b *body) int64 {
	if b.made.Load() {
		return int64(len(b.bytes))
	}
	return int64(e.Size)
}

const (
	// unpackedPerRequest is the number of bytes whose unpacking counts as one more request of the
	// client. `compressedPerRequest` is the number of bytes whose compression counts as one more
	// request. Each takes about 0.1 ms of CPU time, twice the time of a read from the cache.
	unpackedPerRequest   = 64 << 10
	compressedPerRequest = 16 << 10
)

// extraRequests returns how many requests, besides the request itself, are subtracted from the limit
// of the client for a response. It is 0 if the body is encoded already.
func (e *entry) extraRequests(b *body) int {
	switch {
	case b.made.Load():
		return 0
	case b.as == gzipped:
		return e.Size / compressedPerRequest
	}
	return e.Size / unpackedPerRequest
}

// timeHeaders has the response headers that depend on the current time.
type timeHeaders struct {
	second                         int64
	age, cacheControl, cacheStatus []string
}

// timeHeaders returns the headers that depend on the age of the content. It caches them for one second.
// The headers of immutable content are always the same.
func (e *entry) timeHeaders(f store.Freshness, now time.Time) *timeHeaders {
	if e.facet.Immutable {
		return immutableHeaders(e.facet.Public)
	}
	slot := &e.headerCache[0]
	if f == store.Stale {
		slot = &e.headerCache[1]
	}
	// The seconds are counted from the last check of the entity, so that Age and max-age change at
	// the same time.
	age := now.Sub(e.CheckedAt)
	second := int64(age / time.Second)
	if s := slot.Load(); s != nil && s.second == second {
		return s
	}
	// max-age is the whole FreshFor, because the client itself subtracts Age from it (RFC 9111
	// §4.2).
	remaining, maxAge := int((e.facet.FreshFor-age)/time.Second), 0
	if f == store.Fresh {
		maxAge = int(e.facet.FreshFor / time.Second)
	}
	s := &timeHeaders{
		second:       second,
		age:          []string{strconv.Itoa(int(max(0, second)))},
		cacheControl: []string{fmt.Sprintf("%s, max-age=%d, stale-while-revalidate=%d", scope(e.facet.Public), maxAge, int(e.facet.FreshFor/time.Second))},
		cacheStatus:  []string{fmt.Sprintf("freshet; hit; ttl=%d", remaining)},
	}
	slot.Store(s)
	return s
}

// immutableMaxAge is the max-age of immutable content, in seconds: a year, the maximum that
// caches use (RFC 8246).
const immutableMaxAge = 365 * 24 * 60 * 60

// The headers of responses with immutable content: for content that all caches may store, and for
// content that only private caches may store. They contain no Age. So a cache counts max-age (a year)
// from its own request. With an Age, content that was checked more than a year ago would be stale in
// the cache at once.
var publicImmutable, privateImmutable = newImmutableHeaders(true), newImmutableHeaders(false)

func newImmutableHeaders(public bool) *timeHeaders {
	return &timeHeaders{
		cacheControl: []string{fmt.Sprintf("%s, max-age=%d, immutable", scope(public), immutableMaxAge)},
		cacheStatus:  []string{fmt.Sprintf("freshet; hit; ttl=%d", immutableMaxAge)},
	}
}

func immutableHeaders(public bool) *timeHeaders {
	if public {
		return publicImmutable
	}
	return privateImmutable
}

// scope returns the directive of Cache-Control that says which caches may store the response: public or
// private.
func scope(public bool) string {
	if public {
		return "public"
	}
	return "private"
}
