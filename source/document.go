package source

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/freshet/freshet/source/announced"
)

// Document is one call's worth of an entity, or what several calls bring page by page.
type Document struct {
	// Path is a path and query below the base URL, with {placeholders} in path
	// segments and query values.
	Path string `yaml:"path"`
	// Method is GET, if it is empty, or POST.
	Method string `yaml:"method,omitempty"`
	// Headers are sent besides those of the source; their values have {placeholders}.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Body is what a POST sends. In JSON a {placeholder} may stand within strings, in
	// form data anywhere, and in anything else nowhere.
	Body string `yaml:"body,omitempty"`
	// ContentType is the body's; empty: application/json.
	ContentType string `yaml:"contentType,omitempty"`
	// GraphQL is a query, in the place of method and body.
	GraphQL *GraphQL `yaml:"graphql,omitempty"`
	// Cost is what a call is estimated to cost, by unit; of a unit that is not named 1.
	Cost map[string]int `yaml:"cost,omitempty"`
	// Resource is the budget that a call is charged to, where that is known; empty: it
	// is learned from the answers.
	Resource string `yaml:"resource,omitempty"`
	// Paging is how the answer goes on; nil: it does not.
	Paging *Paging `yaml:"paging,omitempty"`
}

// GraphQL is a query and its variables, in whose strings there may be {placeholders}.
type GraphQL struct {
	Query     string         `yaml:"query"`
	Variables map[string]any `yaml:"variables,omitempty"`
}

// Paging is how a document that comes in pages is put together: its content is the list
// of the items of all pages, in their order.
type Paging struct {
	// Link follows the header Link to what is next (RFC 8288).
	Link bool `yaml:"link,omitempty"`
	// Cursor is where in a page's body the next one's cursor stands, by a gjson path; the
	// last page has none there. Param is the query parameter that it is sent as, or
	// Variable the variable of a GraphQL query.
	Cursor   string `yaml:"cursor,omitempty"`
	Param    string `yaml:"param,omitempty"`
	Variable string `yaml:"variable,omitempty"`
	// MaxPages is how many pages there may be; 0: 10. What has more is no content.
	MaxPages int `yaml:"maxPages,omitempty"`
	// Items is where in a page's body its list stands, by a gjson path; empty: the body
	// is the list.
	Items string `yaml:"items,omitempty"`
}

const defaultPageLimit, maxPageLimit = 10, 1000

// PageLimit returns how many pages there may be.
func (p *Paging) PageLimit() int {
	if p.MaxPages == 0 {
		return defaultPageLimit
	}
	return p.MaxPages
}

func (p *Paging) check(method string, q *GraphQL) error {
	switch {
	case p.Link == (p.Cursor != ""):
		return errors.New("paging: write either link: true or where the cursor stands, as in cursor: next_cursor")
	case p.Link && (p.Param != "" || p.Variable != ""):
		return errors.New("paging: param and variable are for a cursor; a link says itself where it leads")
	case p.Link && method != http.MethodGet:
		return errors.New("paging.link: a link is followed with GET, and the document is a POST")
	case p.Cursor != "" && (p.Param == "") == (p.Variable == ""):
		return errors.New("paging: write either param or variable, which the cursor is sent as")
	case p.Variable != "" && q == nil:
		return errors.New("paging.variable: only a graphql query has variables; write param")
	case p.MaxPages < 0 || p.MaxPages > maxPageLimit:
		return fmt.Errorf("paging.maxPages: %d must be from 1 to %d", p.MaxPages, maxPageLimit)
	}
	for name, path := range map[string]string{"cursor": p.Cursor, "items": p.Items} {
		if err := announced.CheckPath(path); err != nil {
			return fmt.Errorf("paging.%s: %w", name, err)
		}
	}
	if p.Variable != "" {
		if _, taken := q.Variables[p.Variable]; taken {
			return fmt.Errorf("paging.variable: %s is filled with the cursor; leave it out of graphql.variables", p.Variable)
		}
	}
	return nil
}

// compiledDocument is a Document ready for use.
type compiledDocument struct {
	Document
	name        string
	method      string
	target      target
	headers     map[string]template
	body        body
	contentType string
}

// maxResource bounds the name of a budget, as package announced does, in bytes.
const maxResource = 128

// compileDocument returns the document, or an error that begins with the wrong setting.
// known says which placeholders there are.
func compileDocument(name string, config Document, auth Auth, known func(name string) bool) (compiledDocument, error) {
	d := compiledDocument{Document: config, name: name, method: config.Method, headers: map[string]template{}, contentType: config.ContentType}
	used := func(setting string, names []string) error {
		for _, name := range names {
			if !known(name) {
				return fmt.Errorf("%s: uses {%s}, which params does not define", setting, name)
			}
		}
		return nil
	}
	var err error
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
		return d, fmt.Errorf("resource: %q must be up to %d printable letters of ASCII without blanks, as answers name it", config.Resource, maxResource)
	}
	if config.Paging != nil {
		return d, config.Paging.check(d.method, config.GraphQL)
	}
	return d, nil
}

// replaceControl has what a text would be cut off at, such as a line's end, shown as a blank.
func replaceControl(r rune) rune {
	if isControl(r) {
		return ' '
	}
	return r
}

// reservedHeaders are set by what sends, or by settings of their own.
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
			return fmt.Errorf("%s: %q can't be the name of a header", strings.Map(replaceControl, name), name)
		case slices.Contains(reservedHeaders, canonical):
			return fmt.Errorf("%s: this header is not to be set; it is made from the other settings", name)
		case canonical == http.CanonicalHeaderKey(auth.Header):
			return fmt.Errorf("%s: this header carries the credential; its value is where auth says", name)
		case seen[canonical]:
			return fmt.Errorf("%s: this header is there twice", name)
		case strings.ContainsFunc(headers[name], isControl):
			return fmt.Errorf("%s: its value holds a control character, such as a line's end", name)
		}
		seen[canonical] = true
	}
	return nil
}
