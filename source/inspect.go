package source

import (
	"bytes"
	"net/http"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Inspection describes the response to one document of a plan, for people who test a configuration.
// It contains no credential.
type Inspection struct {
	Document, Method string
	// Planned is the URL in the plan. URL is the URL that responded; the two differ after a
	// redirect. Next is the URL of the next page, or empty.
	Planned, URL, Next string
	Status             int // HTTP status; 0 means that no response arrived
	Header             http.Header
	Body               []byte // decompressed body of the first page
	WireBytes          int    // length in bytes of the body as it was received
	Class              Class
	Rule               int // index of the rule in Config.Rules that decided the class; -1 means that the status or the content decided
	Notices            []announced.Notice
	Err                error // why the response has no content; nil for the classes OK and NotModified
}

// Inspect describes the responses to a plan, one for each document. For a paged document it describes
// the first page. Like Read it has no side effects.
func (s *Source) Inspect(a *Responses, now time.Time) []Inspection {
	all := make([]Inspection, len(a.responses))
	for i, resp := range a.responses {
		request := a.plan.requests[i]
		w := workspaces.Get().(*workspace)
		w.canonical.out, w.canonical.ignored, w.canonical.members = append(w.canonical.out[:0], '{'), w.canonical.ignored[:0], w.canonical.members[:0]
		o := reading{s, w, a.plan, now}.document(i, resp)
		w.plain.Reset()
		_ = w.decompress(resp, int64(s.config.MaxBody)) // the error is ignored, because readDocument reports it
		all[i] = Inspection{
			Document: request.call.Document, Method: request.call.Method, Planned: s.credentials.redactText(request.url.String()),
			Status: resp.status, Header: s.credentials.redactHeader(resp.header), Body: bytes.Clone(s.credentials.redact(w.plain.Bytes())), WireBytes: len(resp.body),
			Class: o.Class, Rule: -1, Notices: readNotices(s, resp), Err: o.Err,
		}
		if resp.status != 0 {
			all[i].Rule = s.rules.match(resp.status, resp.header, w.plain.Bytes())
		}
		all[i].URL = all[i].Planned
		if resp.url != nil {
			all[i].URL = s.credentials.redactText(resp.url.String())
		}
		if resp.next != nil {
			all[i].Next = s.credentials.redactText(resp.next.String())
		}
		w.free()
	}
	return all
}

// CountMatches returns the number of values in the responses that a path of Facet.Select or
// Facet.Ignore matches. A document without valid content has no matches. Of a paged document only the
// first page is searched.
func (s *Source) CountMatches(a *Responses, path string) int {
	root, err := newPaths(nil, []string{path})
	if err != nil {
		return 0
	}
	w := workspaces.Get().(*workspace)
	defer w.free()
	c := &w.canonical
	n := 0
	for i, resp := range a.responses {
		w.plain.Reset()
		if resp.status != http.StatusOK || w.decompress(resp, int64(s.config.MaxBody)) != nil {
			continue
		}
		body, document := w.plain.Bytes(), a.plan.facet.documents[i]
		if document.Paging != nil {
			items, err := pageItems(body, document.Paging.Items)
			if err != nil {
				continue
			}
			body = append(append([]byte{'['}, items...), ']')
		}
		c.out, c.ignored, c.members = append(c.out[:0], '{'), c.ignored[:0], c.members[:0]
		if c.appendEntry(document.name, body, root) == nil {
			n += len(c.ignored)
		}
	}
	return n
}

// Hashed returns the JSON that Hash was computed from: the content without the ignored values.
func (c *Content) Hashed() []byte {
	var out []byte
	c.workspace.canonical.forEachHashedPart(func(part []byte) { out = append(out, part...) })
	return out
}
