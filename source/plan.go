package source

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/freshet/freshet/source/items"
)

// Request identifies one entity to fetch.
type Request struct {
	Facet  string
	Key    string
	Params map[string]string // values of params that replace the facet's Params
	// Validator is the validator stored with the entity's snapshot. Only facets with Conditional
	// send it.
	Validator Validator
	// Page is the page of a collection that is fetched. It is ignored for a facet that is no
	// collection.
	Page items.PageRequest
}

// Validator contains the response headers that identify a version of the content (RFC 9110
// §8.8).
type Validator struct {
	ETag         string
	LastModified string
}

// Plan contains the calls for one Request. Making a plan sends nothing.
type Plan struct {
	facet     *compiledFacet
	validator Validator
	requests  []documentRequest // one request for each document, in the order of the facet's documents
	onePage   bool
}

// documentRequest is the HTTP request for one document.
type documentRequest struct {
	call   Call
	base   *url.URL // base URL; redirects and links to the next page are not followed if they lead outside of it
	url    *url.URL
	header map[string]string // headers that are sent in addition to Config.Headers

	body        []byte
	contentType string

	lastBody *atomic.Int64 // see compiledDocument

	paging   *Paging                    // settings of the pages; nil means that the document has one page
	number   int                        // number of the page of a collection
	position string                     // JSON value of the GraphQL variable that contains the cursor; empty means the first page
	bodyAt   func(cursor string) []byte // returns the request body of the page after a cursor; nil means that all pages have the same body
}

// Calls returns the minimum number of calls that the plan needs; 0 for a derived facet. Repeated calls
// and further pages can be added to it.
func (p *Plan) Calls() int { return len(p.requests) }

// ExtractVersion returns the number of the facet's settings (Facet.ExtractVersion) with which content
// is extracted from the responses.
func (p *Plan) ExtractVersion() int64 { return p.facet.version }

// OnePage limits the plan to the first page of each document. The content of its responses is
// therefore incomplete.
func (p *Plan) OnePage() { p.onePage = true }

// Plan builds the calls for a request. An error is permanent: the facet does not exist, or a
// value does not fit its placeholder.
func (s *Source) Plan(r Request) (*Plan, error) {
	f, k, err := s.match(r.Facet, r.Key)
	if err != nil {
		return nil, err
	}
	value := func(name string) string { return f.value(name, k, r.Params) }
	credentials, _ := s.credentials.forKey(r.Key)
	if len(credentials) == 0 && f.Derived == nil {
		return nil, errNoCredential
	}
	var params map[string]string
	for _, name := range f.names {
		if params == nil {
			params = make(map[string]string, len(f.names))
		}
		params[name] = value(name)
	}
	p := &Plan{facet: f, requests: make([]documentRequest, len(f.documents))}
	if f.Conditional {
		p.validator = r.Validator
	}
	for i, d := range f.documents {
		c := Call{
			Facet: r.Facet, Document: d.name, Method: d.method, Key: r.Key, Params: params,
			Host: cmp.Or(d.base, s.base).Host, Resource: d.Resource, Costs: d.Cost, Credentials: credentials,
		}
		if p.requests[i], err = s.buildRequest(d, c, value); err != nil {
			return nil, fmt.Errorf("document %s: %w", d.name, err)
		}
		if f.Collection != nil {
			if err := p.requests[i].setPage(f, r.Page); err != nil {
				return nil, fmt.Errorf("document %s: %w", d.name, err)
			}
		}
	}
	return p, nil
}

var errNoCredential = errors.New("credentials: no credential's keys match this key; add a credential for it, or one without keys for all others")

// buildRequest fills the placeholders of one document.
func (s *Source) buildRequest(d compiledDocument, c Call, value func(name string) string) (documentRequest, error) {
	r := documentRequest{call: c, base: cmp.Or(d.base, s.base), paging: d.Paging, contentType: d.contentType, lastBody: d.lastBody, body: d.body.fill(value, noCursor)}
	path, err := d.target.fill(value)
	if err != nil {
		return documentRequest{}, err
	}
	host := *r.base
	host.Path, host.RawPath = "", ""
	if r.url, err = url.Parse(host.String() + trimSlash(r.base.EscapedPath()) + path); err != nil {
		return documentRequest{}, err
	}
	for name, text := range d.headers {
		if r.header == nil {
			r.header = make(map[string]string, len(d.headers))
		}
		r.header[name] = text.fill(value)
		if strings.ContainsFunc(r.header[name], isControl) {
			return documentRequest{}, fmt.Errorf("a value contains a control character, which header %s must not contain", name)
		}
	}
	if d.Paging != nil && d.Paging.Variable != "" {
		r.bodyAt = func(cursor string) []byte { return d.body.fill(value, cursor) }
	}
	return r, nil
}

func trimSlash(path string) string {
	if n := len(path); n > 0 && path[n-1] == '/' {
		return path[:n-1]
	}
	return path
}
