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

// body is the compiled request body of a document. It is parsed before placeholders are filled,
// and each value is escaped within its JSON string or form value. A value can therefore not
// change the structure of the body.
type body struct {
	setting string // name of the setting, for error messages
	text    template
	escape  func(value string) string
}

const (
	// cursorParam is the placeholder of the page cursor. It is a control character, so that it
	// cannot be confused with the name of a param.
	cursorParam = "\x00"
	noCursor    = "null"
)

// placeholders returns the names of all placeholders except the cursor.
func (b body) placeholders() []string {
	return slices.DeleteFunc(slices.Clone(b.text.names), func(name string) bool { return name == cursorParam })
}

// fill returns the body with its placeholders replaced, or nil if the document has no body. The
// parameter `cursor` is the cursor of the page to request, as a JSON value.
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

// compileBody checks the settings method, body, contentType and graphql together, because each
// restricts the others, and compiles them.
func (d *compiledDocument) compileBody() error {
	if d.method == "" {
		d.method = http.MethodGet
	}
	switch {
	case d.method != http.MethodGet && d.method != http.MethodPost:
		return fmt.Errorf("method: %q must be GET or POST", d.Method)
	case d.GraphQL != nil && (d.Method == http.MethodGet || d.Body != "" || d.ContentType != ""):
		return errors.New("graphql: a GraphQL query is always a POST request with JSON; remove `method`, `body` and `contentType`")
	case d.GraphQL != nil:
		d.method, d.contentType = http.MethodPost, "application/json"
		return d.compileQuery()
	case d.Body == "" && d.ContentType != "":
		return errors.New("contentType: needs `body`; set `body`, or remove contentType")
	case d.Body == "":
		return nil
	case d.method == http.MethodGet:
		return errors.New("body: a GET request has no body; set `method: POST`")
	}
	if d.contentType == "" {
		d.contentType = "application/json"
	}
	kind, _, err := mime.ParseMediaType(d.contentType)
	if err != nil || strings.ContainsFunc(d.contentType, isControl) {
		return fmt.Errorf("contentType: %q is not a content type, such as application/json", d.contentType)
	}
	d.body = body{setting: "body"}
	switch {
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		d.body.escape = jsonEscape
		d.body.text, err = parseJSON([]byte(d.Body))
	case kind == "application/x-www-form-urlencoded":
		d.body.escape = percentEncode
		d.body.text, err = parseTemplate(d.Body)
	default:
		// Braces are literal text in other content types, because this package does not know how to
		// escape a placeholder's value in them.
		d.body.text = template{literals: []string{d.Body}}
	}
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}

func (d *compiledDocument) compileQuery() error {
	if strings.TrimSpace(d.GraphQL.Query) == "" {
		return errors.New("graphql.query: is missing")
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
	// Remove the opening brace with which the variables in "filled" begin: the template t already
	// ends with that brace.
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

// jsonEscape returns value escaped for use inside a JSON string, without quotes.
func jsonEscape(value string) string {
	text, err := json.Marshal(value)
	if err != nil { // cannot happen: json.Marshal encodes every string
		return ""
	}
	return string(text[1 : len(text)-1])
}

// parseJSON compiles a JSON text whose string values may contain placeholders. Braces in the names
// of object members are literal text.
func parseJSON(text []byte) (template, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return template{}, fmt.Errorf("not valid JSON (a {placeholder} must be within a string): %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return template{}, errors.New("not valid JSON: text after the end")
	}
	b := &builder{}
	err := b.value(v)
	return b.done(), err
}

// builder assembles a template from literals and placeholders.
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
		for i, item := range v {
			if i > 0 {
				b.write(",")
			}
			if err := b.value(item); err != nil {
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
