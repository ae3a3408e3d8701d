package source

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Request asks for one entity.
type Request struct {
	Facet  string
	Key    string
	Params map[string]string // win over the facet's own
	// Validator of the stored snapshot; used by conditional facets only.
	Validator Validator
}

// Validator is what an upstream gave to recognise its content by.
type Validator struct {
	ETag         string
	LastModified string
}

// Plan is a Request made into calls; making one sends nothing.
type Plan struct {
	facet     *compiledFacet
	validator Validator
	requests  []documentRequest // one a document, in the order of its documents
}

// documentRequest is what one document is fetched with.
type documentRequest struct {
	call   Call
	url    *url.URL
	header map[string]string // besides those of every call

	body        []byte
	contentType string

	paging *Paging                    // nil: the first answer is all
	bodyAt func(cursor string) []byte // of the page after that cursor, in JSON; nil: of every page the same
}

// Calls returns the number of calls that the plan needs at least: more are made where
// one is resent, or an answer says that there is more to come.
func (p *Plan) Calls() int { return len(p.requests) }

// Plan returns the calls for a request. An error means that no call could ever
// be made for it: there is no such facet, or a value does not fit.
func (s *Source) Plan(r Request) (*Plan, error) {
	if err := s.CheckKey(r.Facet, r.Key); err != nil {
		return nil, err
	}
	f := s.facets[r.Facet]
	value := func(name string) string {
		if name == keyParam {
			return r.Key
		}
		if v, ok := r.Params[name]; ok {
			return v
		}
		return f.params[name].fill(func(string) string { return r.Key })
	}
	credentials, _ := s.credentials.forKey(r.Key)
	if len(credentials) == 0 {
		return nil, errNoCredential
	}
	var params map[string]string
	for name := range f.params {
		if params == nil {
			params = make(map[string]string, len(f.params))
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
			Resource: d.Resource, Costs: d.Cost, Credentials: credentials,
		}
		var err error
		if p.requests[i], err = s.buildRequest(d, c, value); err != nil {
			return nil, fmt.Errorf("document %s: %w", d.name, err)
		}
	}
	return p, nil
}

var errNoCredential = errors.New("credentials: the key matches the keys of none of them; list one for it, or one without keys for all others")

// buildRequest fills in what a document is fetched with.
func (s *Source) buildRequest(d compiledDocument, c Call, value func(name string) string) (documentRequest, error) {
	r := documentRequest{call: c, paging: d.Paging, contentType: d.contentType, body: d.body.fill(value, noCursor)}
	path, err := d.target.fill(value)
	if err != nil {
		return documentRequest{}, err
	}
	base := *s.base
	base.Path, base.RawPath = "", ""
	if r.url, err = url.Parse(base.String() + trimSlash(s.base.EscapedPath()) + path); err != nil {
		return documentRequest{}, err
	}
	for name, text := range d.headers {
		if r.header == nil {
			r.header = make(map[string]string, len(d.headers))
		}
		r.header[name] = text.fill(value)
		if strings.ContainsFunc(r.header[name], isControl) {
			return documentRequest{}, fmt.Errorf("a value puts a control character into the header %s", name)
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
