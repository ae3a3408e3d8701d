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
	"github.com/freshet/freshet/source/items"
)

// Outcome is the result of a fetch.
type Outcome struct {
	Class Class
	// Content is set if Class is OK. The caller must release it.
	Content *Content
	// Page is set instead of Content if the facet is a collection. It has no items if Class is
	// NotModified.
	Page *items.Page
	// Redacted is the number of places in Content where a credential was replaced.
	Redacted int
	// Validator is the validator in the response. It is set only for a facet with a single
	// document.
	Validator Validator
	// The fields below are set if Class is not OK. They describe the response with that class.
	Err        error
	Status     int           // HTTP status; 0 if the response is missing or incomplete
	RetryAfter time.Duration // delay requested by the upstream, at most 24 h; 0 if none
	// Block is the scope that a response of class quota or auth blocks, one of the Block
	// constants. Wait is the minimum duration of that block (Rule.Wait), or 0.
	Block string
	Wait  time.Duration
	// Permit is the permit of the call, or nil if none was spent.
	Permit     Permit
	Sample     []byte // the first bytes of the body, decompressed and redacted
	SampleType string
}

// Content is the extracted content of an entity.
type Content struct {
	// Bytes contains the facet's documents as one JSON object by name, in canonical form: the
	// selected values, including the ignored ones. For a raw facet it contains the bytes of its
	// document. It is valid until Release.
	Bytes []byte
	// MediaType is the media type of the content of a raw facet. It is empty for JSON.
	MediaType string
	// Hash is the SHA-256 of Bytes without the ignored values.
	Hash [sha256.Size]byte
	// ExtractVersion identifies the facet's settings that Bytes was extracted with.
	ExtractVersion int64

	workspace *workspace
}

// Release returns the memory of Bytes to a pool. Bytes must not be used afterwards.
func (c *Content) Release() {
	if c.workspace != nil {
		c.workspace.free()
		c.Bytes, c.workspace = nil, nil
	}
}

// maxSampleBytes is the maximum length of Outcome.Sample, which is stored with a dead letter.
const maxSampleBytes = 16 << 10

// workspace holds the buffers of one Read. Workspaces are pooled.
type workspace struct {
	canonical canonical
	plain     bytes.Buffer // the decompressed body
	gzip      gzip.Reader
	wire      bytes.Reader
	hash      hash.Hash
	redacted  int // number of places in the content where a credential was replaced
}

var workspaces = sync.Pool{New: func() any { return &workspace{hash: sha256.New()} }}

// maxIdleWorkspace is the maximum size in bytes of a workspace that is returned to the pool. Larger
// workspaces are left to the garbage collector.
const maxIdleWorkspace = 8 << 20

func (w *workspace) free() {
	c := &w.canonical
	members := (cap(c.members) + cap(c.moved)) * int(unsafe.Sizeof(member{}))
	if cap(c.out)+cap(c.scratch)+w.plain.Cap()+members <= maxIdleWorkspace {
		workspaces.Put(w)
	}
}

// Read classifies the responses to a Plan and, if all of them have the class OK, extracts their
// content. Each body is validated and extracted in one pass. The result depends only on the
// responses, the source's settings and now.
func (s *Source) Read(a *Responses, now time.Time) Outcome {
	w := workspaces.Get().(*workspace)
	c := &w.canonical
	c.out, c.ignored, c.members = append(c.out[:0], '{'), c.ignored[:0], c.members[:0]
	w.redacted = 0
	if f := a.plan.facet; f.Collection != nil {
		defer w.free()
		return responseReader{s: s, w: w, name: f.documents[0].name, response: a.responses[0], now: now}.readItems(a.plan)
	}
	result := Outcome{Class: OK}
	for i, resp := range a.responses {
		if errors.Is(resp.err, errUseless) {
			// This document was not requested, because another one failed. The failed document
			// decides the class.
			continue
		}
		o := reading{s, w, a.plan, now}.document(i, resp)
		if result.Class == OK || moreSevere(result.Class, o.Class) != result.Class {
			result = o
		}
	}
	if result.Class != OK {
		w.free()
		return result
	}
	if a.plan.facet.Raw == nil {
		c.out = append(c.out, '}')
	}
	content := &Content{Bytes: c.out, MediaType: a.plan.facet.MediaType(), ExtractVersion: a.plan.facet.version, workspace: w}
	w.hash.Reset()
	c.forEachHashedPart(func(part []byte) { w.hash.Write(part) })
	w.hash.Sum(content.Hash[:0])
	result.Content, result.Redacted = content, w.redacted
	if r := a.plan.requests[0]; len(a.responses) == 1 && r.call.Method == http.MethodGet && r.paging == nil {
		h := a.responses[0].header
		result.Validator = Validator{ETag: s.credentials.storableValidator(h.Get("Etag")), LastModified: s.credentials.storableValidator(h.Get("Last-Modified"))}
	}
	return result
}

// reading reads the responses to one plan.
type reading struct {
	s    *Source
	w    *workspace
	plan *Plan
	now  time.Time
}

// document decompresses, classifies and extracts one document.
func (a reading) document(i int, resp response) Outcome {
	d := a.plan.facet.documents[i]
	if d.Paging != nil {
		return a.pages(d, resp)
	}
	r := responseReader{s: a.s, w: a.w, name: d.name, response: resp, now: a.now}
	if a.plan.facet.Raw != nil {
		return r.readRaw(a.plan)
	}
	o := r.classify(a.plan.validator != Validator{})
	if o.Class != OK {
		return o
	}
	if err := a.w.extractSelected(&a.s.credentials, d, a.w.plain.Bytes(), a.plan.facet.paths); err != nil {
		return r.badContent(err)
	}
	return o
}

// extractSelected extracts one document and returns an error if its selected paths find nothing.
func (w *workspace) extractSelected(secrets *credentials, d compiledDocument, body []byte, root *pathNode) error {
	before := len(w.canonical.out)
	if err := w.extractDocument(secrets, d.name, body, root); err != nil {
		return err
	}
	return d.checkSelected(body, w.canonical.out[before:])
}

// pages decompresses, classifies and extracts all pages of a paged document. The first failed
// page decides the document's class.
func (a reading) pages(d compiledDocument, first response) Outcome {
	list, size := []byte{'['}, 0
	var r responseReader
	var o Outcome
	for n, page := range append([]response{first}, first.more...) {
		r = responseReader{s: a.s, w: a.w, name: fmt.Sprintf("%s, page %d", d.name, n+1), response: page, now: a.now}
		if o = r.classify(false); o.Class != OK {
			return o
		}
		items, err := pageItems(a.w.plain.Bytes(), d.Paging.Items)
		if err != nil {
			return r.badContent(err)
		}
		if size += a.w.plain.Len(); size > int(a.s.config.MaxBody) {
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
	if err := a.w.extractSelected(&a.s.credentials, d, append(list, ']'), a.plan.facet.paths); err != nil {
		return r.badContent(err)
	}
	return o
}

// responseReader reads one response. After classify, w.plain contains its body.
type responseReader struct {
	s        *Source
	w        *workspace
	name     string
	response response
	now      time.Time
}

// classify decompresses and classifies the response. `conditional` is true if the request contained
// the stored validator; otherwise a 304 is a failure.
func (r responseReader) classify(conditional bool) Outcome {
	s, resp := r.s, r.response
	r.w.plain.Reset()
	if resp.err != nil && !errors.Is(resp.err, ErrOversized) {
		// The status, for example 429, decides the class even if the body is incomplete.
		if resp.status != 0 && resp.status != http.StatusOK {
			return r.failure(s.rules.classify(resp.status, resp.header, nil), resp.err)
		}
		return r.failure(classification{class: Transient}, resp.err)
	}
	err := resp.err
	if unpackErr := r.w.decompress(resp, int64(s.config.MaxBody)); err == nil {
		err = unpackErr
	}
	v := s.rules.classify(resp.status, resp.header, r.w.plain.Bytes())
	if v.class != OK && v.class != NotModified {
		err := fmt.Errorf("the upstream answered %d %s", resp.status, http.StatusText(resp.status))
		if resp.linkErr != nil {
			err = fmt.Errorf("%w; the redirect %w", err, resp.linkErr)
		}
		return r.failure(v, err)
	}
	switch {
	case errors.Is(err, ErrOversized):
		return r.failure(classification{class: BadContent}, ErrOversized)
	case err != nil:
		// The body cannot be decompressed, so it was damaged in transit. A retry may succeed.
		return r.failure(classification{class: Transient}, err)
	case v.class == NotModified && !conditional:
		return r.failure(classification{class: BadContent}, errors.New("the upstream answered 304 to an unconditional request"))
	}
	return Outcome{Class: v.class, Status: resp.status, Permit: resp.permit}
}

// failure returns the outcome of a response without content.
func (r responseReader) failure(v classification, err error) Outcome {
	plain, header := r.w.plain.Bytes(), r.response.header
	o := Outcome{
		Class: v.class, Block: v.block, Wait: v.wait, Status: r.response.status, Permit: r.response.permit,
		Err:    r.s.credentials.redactError(fmt.Errorf("document %s: %w", r.name, err)),
		Sample: r.s.credentials.sample(plain),
	}
	if header != nil {
		o.SampleType = string(r.s.credentials.redact([]byte(header.Get("Content-Type"))))
		o.RetryAfter = announced.RetryAfter(refusesAll(v.class), header, r.now)
	}
	return o
}

// badContent returns the outcome of a response whose body cannot be parsed.
func (r responseReader) badContent(err error) Outcome {
	if kind := r.response.header.Get("Content-Type"); !strings.Contains(kind, "json") {
		err = fmt.Errorf("%w (content type %q)", err, kind)
	}
	return r.failure(classification{class: BadContent}, err)
}

// refusesAll reports whether a response of this class means that the upstream refuses other calls too.
// Only then does the end of a rate-limit window count as a retry delay.
func refusesAll(c Class) bool { return c == Quota || c == Maintenance || c == AuthRefused }

// decompress writes at most `limit` bytes of the decompressed body to w.plain.
func (w *workspace) decompress(resp response, limit int64) error {
	switch encoding := resp.header.Get("Content-Encoding"); encoding {
	case "", "identity":
		w.plain.Write(resp.body)
		return nil
	case "gzip", "x-gzip":
		if len(resp.body) == 0 {
			return nil // no body to decompress, for example in a 304
		}
		w.wire.Reset(resp.body)
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
		w.plain.Write(resp.body)
		return fmt.Errorf("unsupported content encoding %q; freshet requests gzip or identity", encoding)
	}
}

// appendEntry extracts one document and appends it as a member to the JSON object of the entity's
// documents. The member's name is the document's name.
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

// checkJSON returns an error if body is not exactly one valid JSON document. Unlike json.Valid
// it bounds the nesting, so that a hostile body cannot exhaust the stack.
func checkJSON(body []byte) error {
	w := workspaces.Get().(*workspace)
	defer w.free()
	c := &w.canonical
	c.reset()
	return c.appendDocument(body, keepAll)
}
