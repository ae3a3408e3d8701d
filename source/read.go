package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/klauspost/compress/gzip"

	"github.com/freshet/freshet/source/announced"
)

// Outcome is what a fetch came to.
type Outcome struct {
	Class Class
	// Content is set when Class is OK; its owner releases it.
	Content *Content
	// Validator is what a single document was given to recognise it by.
	Validator Validator
	// The rest tells of the answer that decided the class, if it was not OK.
	Err        error
	Status     int           // 0 if no whole answer came
	RetryAfter time.Duration // how long the upstream asks to wait, at most 24 h; 0 if it does not say
	Sample     []byte        // the beginning of the body, decompressed
	SampleType string
}

// Content is an entity's content, extracted.
type Content struct {
	// JSON holds the facet's documents as one object by name, in canonical form:
	// what select keeps, with what ignore names. Valid until Release.
	JSON []byte
	// Hash is the SHA-256 of the same without what ignore names.
	Hash [sha256.Size]byte
	// ExtractVersion tells apart what different settings of the facet extract.
	ExtractVersion int64

	walk *walk
}

// Release gives the memory of JSON back; JSON must not be used afterwards.
func (c *Content) Release() {
	if c.walk != nil {
		c.walk.free()
		c.JSON, c.walk = nil, nil
	}
}

// sampleBytes is how much of an answer is kept for a dead letter.
const sampleBytes = 16 << 10

// walk is the memory of one reading, used again by the next.
type walk struct {
	canonical canonical
	plain     bytes.Buffer // the decompressed body
	gzip      gzip.Reader
	wire      bytes.Reader
	hash      hash.Hash
}

var walks = sync.Pool{New: func() any { return &walk{hash: sha256.New()} }}

// maxIdleWalk bounds the memory that is kept for the next reading.
const maxIdleWalk = 8 << 20

func (w *walk) free() {
	c := &w.canonical
	members := (cap(c.members) + cap(c.moved)) * int(unsafe.Sizeof(member{}))
	if cap(c.out)+cap(c.scratch)+w.plain.Cap()+members <= maxIdleWalk {
		walks.Put(w)
	}
}

// Read says what the answers to a Plan mean and, if all are good, extracts their
// content in one validated walk. It is pure: it depends on nothing but the
// answers and the source's settings.
func (s *Source) Read(a *Answers, now time.Time) Outcome {
	w := walks.Get().(*walk)
	c := &w.canonical
	c.out, c.ignored, c.members = append(c.out[:0], '{'), c.ignored[:0], c.members[:0]
	result := Outcome{Class: OK}
	for i, one := range a.answers {
		if errors.Is(one.err, errUseless) {
			continue // another document decides
		}
		o := s.readDocument(w, a.plan, i, one, now)
		if result.Class == OK || worst(result.Class, o.Class) != result.Class {
			result = o
		}
	}
	if result.Class != OK {
		w.free()
		return result
	}
	c.out = append(c.out, '}')
	content := &Content{JSON: c.out, ExtractVersion: a.plan.facet.version, walk: w}
	w.hash.Reset()
	c.counted(func(part []byte) { w.hash.Write(part) })
	w.hash.Sum(content.Hash[:0])
	result.Content = content
	if len(a.answers) == 1 {
		h := a.answers[0].header
		result.Validator = Validator{ETag: storable(h.Get("Etag")), LastModified: storable(h.Get("Last-Modified"))}
	}
	return result
}

// storable returns a validator if it can be kept and sent again, or nothing: a
// header may hold bytes that no database takes as text (RFC 9110 §5.5).
func storable(validator string) string {
	const longest = 1 << 10
	if len(validator) > longest || strings.ContainsFunc(validator, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return validator
}

// readDocument decompresses, classifies and walks one document.
func (s *Source) readDocument(w *walk, p *Plan, i int, one answer, now time.Time) Outcome {
	name, conditional := p.facet.documents[i].name, p.validator != Validator{}
	o := Outcome{Status: one.status}
	fail := func(class Class, err error) Outcome {
		o.Class, o.Err = class, fmt.Errorf("document %s: %w", name, err)
		o.Sample = s.concealed(bytes.Clone(w.plain.Bytes()[:min(w.plain.Len(), sampleBytes)]))
		if one.header != nil {
			o.SampleType = one.header.Get("Content-Type")
			o.RetryAfter = announced.RetryAfter(refusesAll(class), one.header, now)
		}
		return o
	}
	w.plain.Reset()
	if one.err != nil && !errors.Is(one.err, ErrOversized) {
		// Of an answer whose body was lost the status still counts: a 429 is one.
		if one.status != 0 && one.status != http.StatusOK {
			return fail(s.classify(one.status, one.header, nil), one.err)
		}
		return fail(Transient, one.err)
	}
	err := one.err
	if unpack := s.decompress(w, one); err == nil {
		err = unpack
	}
	body := w.plain.Bytes()
	if o.Class = s.classify(one.status, one.header, body); o.Class != OK && o.Class != NotModified {
		return fail(o.Class, fmt.Errorf("the upstream answered %d %s", one.status, http.StatusText(one.status)))
	}
	switch {
	case errors.Is(err, ErrOversized):
		return fail(BadContent, ErrOversized)
	case err != nil:
		return fail(Transient, err) // broken on the way
	case o.Class == NotModified && !conditional:
		return fail(BadContent, errors.New("the upstream answered 304, and was not asked conditionally"))
	case o.Class == NotModified:
		return o
	}
	if err := w.canonical.entry(name, body, p.facet.paths); err != nil {
		if kind := one.header.Get("Content-Type"); !strings.Contains(kind, "json") {
			err = fmt.Errorf("%w (content type %q)", err, kind)
		}
		return fail(BadContent, err)
	}
	return o
}

// refusesAll reports whether an answer of the class refuses every call, and not only
// this one.
func refusesAll(c Class) bool { return c == Quota || c == Maintenance || c == AuthRefused }

// decompress puts the body into w.plain, at most MaxBody of it.
func (s *Source) decompress(w *walk, one answer) error {
	limit := int64(s.config.MaxBody)
	switch encoding := one.header.Get("Content-Encoding"); encoding {
	case "", "identity":
		w.plain.Write(one.body)
		return nil
	case "gzip", "x-gzip":
		if len(one.body) == 0 {
			return nil // a 304, or an empty answer in spite of the header
		}
		w.wire.Reset(one.body)
		err := w.gzip.Reset(&w.wire)
		if err == nil {
			var n int64
			n, err = w.plain.ReadFrom(io.LimitReader(&w.gzip, limit+1))
			if n > limit {
				w.plain.Truncate(int(limit))
				return ErrOversized
			}
		}
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		return nil
	default:
		w.plain.Write(one.body)
		return fmt.Errorf("content encoding %q, which was not asked for", encoding)
	}
}

// entry appends one document as a member of the root object.
func (c *canonical) entry(name string, body []byte, root *pathNode) error {
	label := canonicalName(name)
	child := root.member([]byte(label))
	before, mark := len(c.out), len(c.ignored)
	if before > 1 {
		c.out = append(c.out, ',')
	}
	start := len(c.out)
	c.out = append(append(append(c.out, '"'), label...), '"', ':')
	value := len(c.out)
	if err := c.document(body, child); err != nil {
		return err
	}
	if child.drops(c.out[value]) {
		c.out, c.ignored = c.out[:before], c.ignored[:mark]
		return nil
	}
	c.note(child, start, mark)
	return nil
}

// isJSON reports whether a body is one valid document. It walks as the reading
// does, whose depth is bounded: a hostile body can't exhaust the stack.
func isJSON(body []byte) bool {
	w := walks.Get().(*walk)
	defer w.free()
	c := &w.canonical
	c.out, c.ignored, c.members = c.out[:0], c.ignored[:0], c.members[:0]
	return c.document(body, everything) == nil
}

// extractVersion returns a number that differs between settings that extract
// different content, so that a changed setting is not taken for a changed entity.
func extractVersion(f Facet) int64 {
	names := slices.Sorted(maps.Keys(f.Documents))
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", names, f.Select, f.Ignore))
	return int64(binary.BigEndian.Uint64(sum[:8]) >> 1)
}
