package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// body is what a call sends. It is taken apart before anything is filled in, so that
// a value can't move a boundary: values are escaped whole, each within its string or
// its form value.
type body struct {
	setting string // that it comes from
	text    template
	escape  func(value string) string
}

const (
	// cursorParam stands for the cursor of the page; no placeholder can have the name.
	cursorParam = "\x00"
	noCursor    = "null"
)

// placeholders returns those that are filled from the request.
func (b body) placeholders() []string {
	return slices.DeleteFunc(slices.Clone(b.text.names), func(name string) bool { return name == cursorParam })
}

// fill returns the body; cursor is JSON. Nil: there is none.
func (b body) fill(value func(name string) string, cursor string) []byte {
	if b.setting == "" {
		return nil
	}
	return []byte(b.text.fill(func(name string) string {
		if name == cursorParam {
			return cursor
		}
		return b.escape(value(name))
	}))
}

// compileBody reads method, body and graphql, of which each says something of the others.
func (d *compiledDocument) compileBody() error {
	if d.method == "" {
		d.method = http.MethodGet
	}
	switch {
	case d.method != http.MethodGet && d.method != http.MethodPost:
		return fmt.Errorf("method: %q must be GET or POST", d.Method)
	case d.GraphQL != nil && (d.Method == http.MethodGet || d.Body != "" || d.ContentType != ""):
		return errors.New("graphql: a query is a POST of JSON; leave out method, body and contentType")
	case d.GraphQL != nil:
		d.method, d.contentType = http.MethodPost, "application/json"
		return d.compileQuery()
	case d.Body == "" && d.ContentType != "":
		return errors.New("contentType: it is the body's, and there is no body")
	case d.Body == "":
		return nil
	case d.method == http.MethodGet:
		return errors.New("body: a GET has none; write method: POST")
	}
	if d.contentType == "" {
		d.contentType = "application/json"
	}
	kind, _, err := mime.ParseMediaType(d.contentType)
	if err != nil || strings.ContainsFunc(d.contentType, isControl) {
		return fmt.Errorf("contentType: %q is no content type; write one as in application/json", d.contentType)
	}
	d.body = body{setting: "body"}
	switch {
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		d.body.escape = jsonEscape
		d.body.text, err = parseJSON([]byte(d.Body))
	case kind == "application/x-www-form-urlencoded":
		d.body.escape = percentEncode
		d.body.text, err = parseTemplate(d.Body)
	default: // in what is not known a boundary could be anywhere
		d.body.text = template{literals: []string{d.Body}}
	}
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}

func (d *compiledDocument) compileQuery() error {
	if strings.TrimSpace(d.GraphQL.Query) == "" {
		return errors.New("graphql.query: it is missing")
	}
	variables, err := json.Marshal(d.GraphQL.Variables)
	if err != nil {
		return fmt.Errorf("graphql.variables: %w", err)
	}
	if d.GraphQL.Variables == nil {
		variables = []byte("{}")
	}
	filled, err := parseJSON(variables)
	if err != nil {
		return fmt.Errorf("graphql.variables: %w", err)
	}
	t := &builder{}
	t.write(`{"query":"` + jsonEscape(d.GraphQL.Query) + `","variables":{`)
	// The variables are an object, whose first brace is written already.
	filled.literals[0] = filled.literals[0][1:]
	if p := d.Paging; p != nil && p.Variable != "" {
		t.write(`"` + jsonEscape(p.Variable) + `":`)
		t.placeholder(cursorParam)
		if len(d.GraphQL.Variables) > 0 {
			t.write(",")
		}
	}
	t.template(filled)
	t.write("}")
	d.body = body{setting: "graphql.variables", text: t.done(), escape: jsonEscape}
	return nil
}

// jsonEscape returns a value as it stands within a string's quotes.
func jsonEscape(value string) string {
	text, err := json.Marshal(value)
	if err != nil { // a string has no value that can't be written
		return ""
	}
	return string(text[1 : len(text)-1])
}

// parseJSON returns a JSON text with placeholders in its strings; names of members
// have none.
func parseJSON(text []byte) (template, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return template{}, fmt.Errorf("not JSON, in which a {placeholder} stands within a string: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return template{}, errors.New("not JSON: something follows its end")
	}
	b := &builder{}
	err := b.value(v)
	return b.done(), err
}

// builder puts a template together.
type builder struct {
	t    template
	text strings.Builder
}

func (b *builder) write(literal string) { b.text.WriteString(literal) }

func (b *builder) placeholder(name string) {
	b.t.literals, b.t.names = append(b.t.literals, b.text.String()), append(b.t.names, name)
	b.text.Reset()
}

func (b *builder) template(t template) {
	for i, name := range t.names {
		b.write(t.literals[i])
		b.placeholder(name)
	}
	b.write(t.literals[len(t.names)])
}

func (b *builder) done() template {
	b.t.literals = append(b.t.literals, b.text.String())
	return b.t
}

// value writes a decoded JSON value.
func (b *builder) value(v any) error {
	switch v := v.(type) {
	case map[string]any:
		b.write("{")
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b.write(",")
			}
			b.write(`"` + jsonEscape(name) + `":`)
			if err := b.value(v[name]); err != nil {
				return err
			}
		}
		b.write("}")
	case []any:
		b.write("[")
		for i, one := range v {
			if i > 0 {
				b.write(",")
			}
			if err := b.value(one); err != nil {
				return err
			}
		}
		b.write("]")
	case string:
		t, err := parseTemplate(v)
		if err != nil {
			return err
		}
		for i := range t.literals {
			t.literals[i] = jsonEscape(t.literals[i])
		}
		b.write(`"`)
		b.template(t)
		b.write(`"`)
	default:
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		b.write(string(text))
	}
	return nil
}
