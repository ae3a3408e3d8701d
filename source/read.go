package source

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
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
	// Redacted counts how often Content had a credential in it, which was replaced.
	Redacted int
	// Validator is what a single document was given to recognise it by.
	Validator Validator
	// The rest tells of the answer that decided the class, if it was not OK.
	Err        error
	Status     int           // 0 if no whole answer came
	RetryAfter time.Duration // how long the upstream asks to wait, at most 24 h; 0 if it does not say
	// Block is what an answer of class quota or auth stops, one of the Block constants,
	// and Wait is for how long at least, by the rule that it fits; 0: no rule says.
	Block string
	Wait  time.Duration
	// Permit is the one that the call was made with; nil if there was none.
	Permit     Permit
	Sample     []byte // the beginning of the body, decompressed
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

	workspace *workspace
}

// Release gives the memory of JSON back; JSON must not be used afterwards.
func (c *Content) Release() {
	if c.workspace != nil {
		c.workspace.free()
		c.JSON, c.workspace = nil, nil
	}
}

// maxSampleBytes is how much of an answer is kept for a dead letter.
const maxSampleBytes = 16 << 10

// workspace is the memory of one reading, used again by the next.
type workspace struct {
	canonical canonical
	plain     bytes.Buffer // the decompressed body
	gzip      gzip.Reader
	wire      bytes.Reader
	hash      hash.Hash
	redacted  int // credentials that were replaced in the content
}

var workspaces = sync.Pool{New: func() any { return &workspace{hash: sha256.New()} }}

// maxIdleWorkspace bounds the memory that is kept for the next reading.
const maxIdleWorkspace = 8 << 20

func (w *workspace) free() {
	c := &w.canonical
	members := (cap(c.members) + cap(c.moved)) * int(unsafe.Sizeof(member{}))
	if cap(c.out)+cap(c.scratch)+w.plain.Cap()+members <= maxIdleWorkspace {
		workspaces.Put(w)
	}
}

// Read says what the answers to a Plan mean and, if all are good, extracts their
// content in one validated walk. It is pure: it depends on nothing but the
// answers and the source's settings.
func (s *Source) Read(a *Responses, now time.Time) Outcome {
	w := workspaces.Get().(*workspace)
	c := &w.canonical
	c.out, c.ignored, c.members = append(c.out[:0], '{'), c.ignored[:0], c.members[:0]
	w.redacted = 0
	result := Outcome{Class: OK}
	for i, one := range a.responses {
		if errors.Is(one.err, errUseless) {
			continue // another document decides
		}
		o := s.readDocument(w, a.plan, i, one, now)
		if result.Class == OK || moreSevere(result.Class, o.Class) != result.Class {
			result = o
		}
	}
	if result.Class != OK {
		w.free()
		return result
	}
	c.out = append(c.out, '}')
	content := &Content{JSON: c.out, ExtractVersion: a.plan.facet.version, workspace: w}
	w.hash.Reset()
	c.forEachHashedPart(func(part []byte) { w.hash.Write(part) })
	w.hash.Sum(content.Hash[:0])
	result.Content, result.Redacted = content, w.redacted
	if r := a.plan.requests[0]; len(a.responses) == 1 && r.call.Method == http.MethodGet && r.paging == nil {
		h := a.responses[0].header
		result.Validator = Validator{ETag: s.storableValidator(h.Get("Etag")), LastModified: s.storableValidator(h.Get("Last-Modified"))}
	}
	return result
}

// storableValidator returns a validator if it can be kept and sent again, or nothing: a
// header may hold bytes that no database takes as text (RFC 9110 §5.5), or the credential.
func (s *Source) storableValidator(validator string) string {
	const longest = 1 << 10
	if len(validator) > longest || s.containsCredential([]byte(validator)) || strings.ContainsFunc(validator, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return validator
}

// readDocument decompresses, classifies and walks one document.
func (s *Source) readDocument(w *workspace, p *Plan, i int, one response, now time.Time) Outcome {
	d := p.facet.documents[i]
	if d.Paging != nil {
		return s.readPages(w, p, d, one, now)
	}
	r := responseReader{s: s, w: w, name: d.name, answer: one, now: now}
	o := r.classify(p.validator != Validator{})
	if o.Class != OK {
		return o
	}
	if err := s.extractDocument(w, d.name, w.plain.Bytes(), p.facet.paths); err != nil {
		return r.badContent(err)
	}
	return o
}

// readPages does so with one that comes in pages: all of them are read, or the first
// that has failed decides.
func (s *Source) readPages(w *workspace, p *Plan, d compiledDocument, first response, now time.Time) Outcome {
	list, size := []byte{'['}, 0
	var r responseReader
	var o Outcome
	for n, page := range append([]response{first}, first.more...) {
		r = responseReader{s: s, w: w, name: fmt.Sprintf("%s, page %d", d.name, n+1), answer: page, now: now}
		if o = r.classify(false); o.Class != OK {
			return o
		}
		items, err := pageItems(w.plain.Bytes(), d.Paging.Items)
		if err != nil {
			return r.badContent(err)
		}
		if size += w.plain.Len(); size > int(s.config.MaxBody) {
			return r.failure(classification{class: BadContent}, ErrOversized)
		}
		if page.linkErr != nil {
			return r.failure(classification{class: BadContent}, page.linkErr)
		}
		if len(list) > 1 && len(items) > 0 {
			list = append(list, ',')
		}
		list = append(list, items...)
	}
	if err := s.extractDocument(w, d.name, append(list, ']'), p.facet.paths); err != nil {
		return r.badContent(err)
	}
	return o
}

// responseReader is of one answer; its body is in w.plain once it is understood.
type responseReader struct {
	s      *Source
	w      *workspace
	name   string
	answer response
	now    time.Time
}

// classify decompresses and classifies the answer.
func (r responseReader) classify(conditional bool) Outcome {
	s, one := r.s, r.answer
	r.w.plain.Reset()
	if one.err != nil && !errors.Is(one.err, ErrOversized) {
		// Of an answer whose body was lost the status still counts: a 429 is one.
		if one.status != 0 && one.status != http.StatusOK {
			return r.failure(s.classify(one.status, one.header, nil), one.err)
		}
		return r.failure(classification{class: Transient}, one.err)
	}
	err := one.err
	if unpack := s.decompress(r.w, one); err == nil {
		err = unpack
	}
	v := s.classify(one.status, one.header, r.w.plain.Bytes())
	if v.class != OK && v.class != NotModified {
		err := fmt.Errorf("the upstream answered %d %s", one.status, http.StatusText(one.status))
		if one.linkErr != nil {
			err = fmt.Errorf("%w, a redirect that %w", err, one.linkErr)
		}
		return r.failure(v, err)
	}
	switch {
	case errors.Is(err, ErrOversized):
		return r.failure(classification{class: BadContent}, ErrOversized)
	case err != nil:
		return r.failure(classification{class: Transient}, err) // broken on the way
	case v.class == NotModified && !conditional:
		return r.failure(classification{class: BadContent}, errors.New("the upstream answered 304, and was not asked conditionally"))
	}
	return Outcome{Class: v.class, Status: one.status, Permit: one.permit}
}

// failure is what comes of an answer without content.
func (r responseReader) failure(v classification, err error) Outcome {
	plain, header := r.w.plain.Bytes(), r.answer.header
	o := Outcome{
		Class: v.class, Block: v.block, Wait: v.wait, Status: r.answer.status, Permit: r.answer.permit,
		Err:    r.s.redactError(fmt.Errorf("document %s: %w", r.name, err)),
		Sample: r.s.sample(plain),
	}
	if header != nil {
		o.SampleType = string(r.s.redact([]byte(header.Get("Content-Type"))))
		o.RetryAfter = announced.RetryAfter(refusesAll(v.class), header, r.now)
	}
	return o
}

// badContent is what comes of one that can't be read.
func (r responseReader) badContent(err error) Outcome {
	if kind := r.answer.header.Get("Content-Type"); !strings.Contains(kind, "json") {
		err = fmt.Errorf("%w (content type %q)", err, kind)
	}
	return r.failure(classification{class: BadContent}, err)
}

// refusesAll reports whether an answer of the class refuses every call, and not only
// this one.
func refusesAll(c Class) bool { return c == Quota || c == Maintenance || c == AuthRefused }

// decompress puts the body into w.plain, at most MaxBody of it.
func (s *Source) decompress(w *workspace, one response) error {
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

// appendEntry appends one document as a member of the root object.
func (c *canonical) appendEntry(name string, body []byte, root *pathNode) error {
	label := canonicalName(name)
	child := root.member([]byte(label))
	before, mark := len(c.out), len(c.ignored)
	if before > 1 {
		c.out = append(c.out, ',')
	}
	start := len(c.out)
	c.out = append(append(append(c.out, '"'), label...), '"', ':')
	value := len(c.out)
	if err := c.appendDocument(body, child); err != nil {
		return err
	}
	if child.drops(c.out[value]) {
		c.out, c.ignored = c.out[:before], c.ignored[:mark]
		return nil
	}
	c.markIgnored(child, start, mark)
	return nil
}

func isJSON(body []byte) bool { return checkJSON(body) == nil }

// checkJSON says why a body is not one valid document, if it is none. It walks as the
// reading does, whose depth is bounded: a hostile body can't exhaust the stack.
func checkJSON(body []byte) error {
	w := workspaces.Get().(*workspace)
	defer w.free()
	c := &w.canonical
	c.out, c.ignored, c.members = c.out[:0], c.ignored[:0], c.members[:0]
	return c.appendDocument(body, keepAll)
}
