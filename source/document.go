package source

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/freshet/freshet/source/announced"
)

// Document is a part of an entity that one call fetches, or several calls if it is paged.
type Document struct {
	// BaseURL is the beginning of the document's URL, in place of the source's baseURL, for an API with
	// several hosts. The source's credential is sent there too.
	BaseURL string `yaml:"baseURL,omitempty"`
	// Path is the path and query below the base URL. Path segments and query values may contain
	// {placeholders}: {key} and the facet's params. In a path, {+key} keeps the slashes of the key, so
	// that a key such as forms/F01.xml has several segments.
	Path string `yaml:"path"`
	// Method is the HTTP method; empty means GET.
	Method string `yaml:"method,omitempty" enum:"GET,POST"`
	// Headers are sent in addition to the source's headers. Their values may contain {placeholders}.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Body is the body of a POST. JSON may contain {placeholders} within strings, form data
	// anywhere, other content types nowhere.
	Body string `yaml:"body,omitempty"`
	// ContentType is the content type of the body; empty means application/json.
	ContentType string `yaml:"contentType,omitempty"`
	// GraphQL is a GraphQL query, which is sent in place of method and body.
	GraphQL *GraphQL `yaml:"graphql,omitempty"`
	// Cost is the estimated cost of a call, by unit. A unit that is missing costs 1.
	Cost map[string]int `yaml:"cost,omitempty"`
	// Resource is the name of the upstream's budget that a call is charged to. If it is empty, the
	// limiter learns the name from the responses.
	Resource string `yaml:"resource,omitempty"`
	// Paging configures how the next page is requested. Without it, the document has one page.
	Paging *Paging `yaml:"paging,omitempty"`
}

// GraphQL configures the GraphQL query of a document, and the variables of the query.
type GraphQL struct {
	// Query is the text of the query.
	Query string `yaml:"query"`
	// Variables are the variables of the query, by name. Strings may contain {placeholders}.
	Variables map[string]any `yaml:"variables,omitempty"`
}

// Paging configures a paged document. Its content is the list of the items of all pages, in
// order.
type Paging struct {
	// Link follows the relation "next" of a response's Link header (RFC 8288).
	Link bool `yaml:"link,omitempty"`
	// Cursor is the gjson path of the next page's cursor in a page's body, such as next_cursor. The last
	// page has none.
	Cursor string `yaml:"cursor,omitempty"`
	// Param is the name of the query parameter in which the cursor is sent.
	Param string `yaml:"param,omitempty"`
	// Variable is the name of the variable of the GraphQL query in which the cursor is sent.
	Variable string `yaml:"variable,omitempty"`
	// MaxPages is the maximum number of pages, from 1 to 1000; 0 means 10. For a collection it is from 1
	// to 100000, and 0 means 1000. A list with more pages is bad content.
	MaxPages int `yaml:"maxPages,omitempty"`
	// Items is the gjson path of the list in a page's body; empty means that the body is the
	// list.
	Items string `yaml:"items,omitempty"`
}

const defaultPageLimit, maxPageLimit = 10, 1000

// PageLimit returns MaxPages or its default.
func (p *Paging) PageLimit() int {
	if p.MaxPages == 0 {
		return defaultPageLimit
	}
	return p.MaxPages
}

func (p *Paging) check(method string, q *GraphQL) error {
	switch {
	case p.Link == (p.Cursor != ""):
		return errors.New("paging: set either `link: true` or the path of the cursor, as in `cursor: next_cursor`")
	case p.Link && (p.Param != "" || p.Variable != ""):
		return errors.New("paging: `param` and `variable` need `cursor`, and are not allowed with `link`")
	case p.Link && method != http.MethodGet:
		return errors.New("paging.link: not allowed for a POST request, because a link is followed with GET")
	case p.Cursor != "" && (p.Param == "") == (p.Variable == ""):
		return errors.New("paging: set either `param` or `variable` to the name under which the cursor is sent")
	case p.Variable != "" && q == nil:
		return errors.New("paging.variable: only a graphql query has variables; set paging.param instead")
	}
	for name, path := range map[string]string{"cursor": p.Cursor, "items": p.Items} {
		if err := announced.CheckPath(path); err != nil {
			return fmt.Errorf("paging.%s: %w", name, err)
		}
	}
	if p.Variable != "" {
		if _, taken := q.Variables[p.Variable]; taken {
			return fmt.Errorf("paging.variable: %s contains the cursor; remove it from graphql.variables", p.Variable)
		}
	}
	return nil
}

// compiledDocument is a validated Document.
type compiledDocument struct {
	Document
	name        string
	method      string
	base        *url.URL // base URL of the document; nil means that the document has the base URL of the source
	target      target
	headers     map[string]template
	body        body
	contentType string
	// lastBody is the length of the last complete body without a Content-Length, in bytes. All copies
	// of the document share it.
	lastBody   *atomic.Int64
	selections []selection // nil means that the whole document is kept, or none of it
}

// maxResource bounds the length of a resource name in bytes, as in package announced.
const maxResource = 128

// compileDocument returns the document, or an error that begins with the name of the invalid setting.
// `known` reports whether a placeholder is defined.
func compileDocument(name string, config Document, auth Auth, known func(name string) bool) (compiledDocument, error) {
	d := compiledDocument{Document: config, name: name, method: config.Method, headers: map[string]template{}, contentType: config.ContentType, lastBody: new(atomic.Int64)}
	used := func(setting string, names []string) error {
		for _, name := range names {
			if !known(name) {
				return fmt.Errorf("%s: uses {%s}, which neither params nor a named group of keyPattern defines", setting, name)
			}
		}
		return nil
	}
	var err error
	if config.BaseURL != "" {
		if d.base, err = parseBaseURL(config.BaseURL); err != nil {
			return d, err
		}
	}
	if d.target, err = parseTarget(config.Path); err != nil {
		return d, fmt.Errorf("path: %w", err)
	}
	if err := used("path", d.target.placeholders()); err != nil {
		return d, err
	}
	if err := d.compileBody(); err != nil {
		return d, err
	}
	if err := used(d.body.setting, d.body.placeholders()); err != nil {
		return d, err
	}
	if err := checkHeaders(config.Headers, auth); err != nil {
		return d, fmt.Errorf("headers.%w", err)
	}
	for name, text := range config.Headers {
		if d.headers[name], err = parseTemplate(text); err != nil {
			return d, fmt.Errorf("headers.%s: %w", name, err)
		}
		if err := used("headers."+name, d.headers[name].placeholders()); err != nil {
			return d, err
		}
	}
	for _, unit := range slices.Sorted(maps.Keys(config.Cost)) {
		if config.Cost[unit] < 0 {
			return d, fmt.Errorf("cost.%s: %d must not be negative", unit, config.Cost[unit])
		}
	}
	if strings.ContainsFunc(config.Resource, func(r rune) bool { return r <= ' ' || r > '~' }) || len(config.Resource) > maxResource {
		return d, fmt.Errorf("resource: %q must be at most %d printable ASCII characters without spaces; use the name that the upstream writes in its responses", config.Resource, maxResource)
	}
	if config.Paging != nil {
		return d, config.Paging.check(d.method, config.GraphQL)
	}
	return d, nil
}

// replaceControl returns a space for a control character, so that a line break cannot cut an
// error message.
func replaceControl(r rune) rune {
	if isControl(r) {
		return ' '
	}
	return r
}

// reservedHeaders are set by the transport or by other settings.
var reservedHeaders = []string{
	"Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host",
	"If-Modified-Since", "If-None-Match", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func checkHeaders(headers map[string]string, auth Auth) error {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case name == "" || !headerName.MatchString(name):
			return fmt.Errorf("%s: %q is not a valid header name", strings.Map(replaceControl, name), name)
		case slices.Contains(reservedHeaders, canonical):
			return fmt.Errorf("%s: this header is reserved; freshet sets it from other settings", name)
		case canonical == http.CanonicalHeaderKey(auth.Header):
			return fmt.Errorf("%s: this header contains the credential; it is configured by auth", name)
		case seen[canonical]:
			return fmt.Errorf("%s: this header is set twice", name)
		case strings.ContainsFunc(headers[name], isControl):
			return fmt.Errorf("%s: the value contains a control character, such as a line break", name)
		}
		seen[canonical] = true
	}
	return nil
}
