package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The following types are the data of the page's template.

type pageView struct {
	Style       template.CSS
	Info        info
	Text        []block
	Servers     []server
	Schemes     []schemeView
	Groups      []groupView
	Schemas     []schemaView
	DocumentURL string
}

type groupView struct {
	Anchor, Name string
	Text         []block
	Operations   []operationView
}

type operationView struct {
	Anchor, Method, Path, Summary string
	Pieces                        []part // Path cut into pieces; a piece with an Href is a placeholder such as {key}
	Text                          []block
	Deprecated                    bool
	Access                        []accessView
	Parameters                    []parameterView
	Body                          *bodyView
	Answers                       []answerView
	Curl                          string
}

// accessView is one security requirement: a request must use all of its schemes together.
type accessView []struct {
	Name, Href string
	Scopes     []string
}

type parameterView struct {
	Name, In             string
	Required, Deprecated bool
	Type                 []part
	Rules                []rule
	Text                 []block
	Examples             []exampleView
}

type bodyView struct {
	Required bool
	Text     []block
	Contents []contentView
}

type answerView struct {
	Status, Class, Phrase string
	Text                  []block
	Headers               []parameterView
	Contents              []contentView
}

type contentView struct {
	Media    string
	Stream   bool
	Schema   schemaView
	Examples []exampleView
}

type schemaView struct {
	Anchor, Name string
	Text         []block
	Type         []part
	Rules        []rule
	Rows         []row
}

type exampleView struct {
	Name string
	Text []block
	Code string
}

type schemeView struct {
	Anchor, Name, How string
	Code              string
	Text              []block
	Scopes            []entry[string]
}

// block is a paragraph or, if Item is true, a list item.
type block struct {
	Item   bool
	Pieces []struct {
		Text string
		Code bool
	}
}

// texts parses the Markdown that the document uses: paragraphs, lists and code.
func texts(all ...string) []block {
	var blocks []block
	for _, text := range all {
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			var lines []string
			flush := func(isItem bool) {
				if joined := strings.TrimSpace(strings.Join(lines, " ")); joined != "" {
					blocks = append(blocks, blockOf(joined, isItem))
				}
				lines = nil
			}
			inItem := false
			for line := range strings.SplitSeq(paragraph, "\n") {
				line = strings.TrimSpace(line)
				if item, ok := strings.CutPrefix(line, "- "); ok {
					flush(inItem)
					line, inItem = item, true
				}
				lines = append(lines, line)
			}
			flush(inItem)
		}
	}
	return blocks
}

func blockOf(text string, isItem bool) block {
	b := block{Item: isItem}
	for i, piece := range strings.Split(text, "`") {
		if piece != "" {
			b.Pieces = append(b.Pieces, struct {
				Text string
				Code bool
			}{piece, i%2 == 1})
		}
	}
	return b
}

// pager renders the page of a document. `missing` collects the references that it could not
// resolve.
type pager struct {
	*document
	missing []string
}

func (p *pager) link(ref string) part {
	name := strings.TrimPrefix(ref, "#/components/schemas/")
	find(p, p.Components.Schemas, "schemas", ref)
	return part{name, "#schema-" + name}
}

func find[T any](p *pager, in ordered[T], kind, ref string) T {
	for _, e := range in {
		if "#/components/"+kind+"/"+e.Name == ref {
			return e.Value
		}
	}
	p.missing = append(p.missing, ref)
	var none T
	return none
}

func (p *pager) view() (pageView, error) {
	v := pageView{Style: template.CSS(pageStyle), Info: p.Info, Text: texts(p.Info.Description), Servers: p.Servers, DocumentURL: "openapi.yaml"}
	for _, s := range p.Components.SecuritySchemes {
		v.Schemes = append(v.Schemes, schemeOf(s.Name, s.Value))
	}
	for _, t := range p.Tags {
		name := t.Name
		if t.Summary != "" {
			name = t.Summary
		}
		v.Groups = append(v.Groups, groupView{Anchor: "tag-" + slug(t.Name), Name: name, Text: texts(t.Description)})
	}
	for _, at := range p.Paths {
		for _, o := range at.Value.operations() {
			made := p.operation(at.Name, o.Name, at.Value, o.Value)
			tags := o.Value.Tags
			if len(tags) == 0 {
				tags = []string{"other"}
			}
			for i, t := range tags {
				g := v.group("tag-"+slug(t), t)
				if i > 0 {
					made.Anchor += "-" + slug(t) // an operation with several tags is listed once for each tag, each time with a different anchor
				}
				g.Operations = append(g.Operations, made)
			}
		}
	}
	for i := range p.Components.Schemas {
		e := &p.Components.Schemas[i]
		s := p.schema(&e.Value)
		s.Anchor, s.Name = "schema-"+e.Name, e.Name
		v.Schemas = append(v.Schemas, s)
	}
	if len(p.missing) > 0 {
		return v, fmt.Errorf("unresolved references: %s", strings.Join(p.missing, ", "))
	}
	return v, nil
}

func (v *pageView) group(anchor, name string) *groupView {
	for i := range v.Groups {
		if v.Groups[i].Anchor == anchor {
			return &v.Groups[i]
		}
	}
	v.Groups = append(v.Groups, groupView{Anchor: anchor, Name: name})
	return &v.Groups[len(v.Groups)-1]
}

func (at path) operations() ordered[*operation] {
	all := ordered[*operation]{
		{"GET", at.Get},
		{"PUT", at.Put},
		{"POST", at.Post},
		{"PATCH", at.Patch},
		{"DELETE", at.Delete},
		{"HEAD", at.Head},
		{"OPTIONS", at.Options},
		{"TRACE", at.Trace},
	}
	return slices.DeleteFunc(all, func(o entry[*operation]) bool { return o.Value == nil })
}

var (
	unsafe      = regexp.MustCompile(`[^A-Za-z0-9_-]+`)
	placeholder = regexp.MustCompile(`\{[^{}]+\}`)
)

func slug(text string) string { return strings.Trim(unsafe.ReplaceAllString(text, "-"), "-") }

func (p *pager) operation(name, method string, at path, o *operation) operationView {
	v := operationView{
		Anchor: "op-" + slug(o.OperationID), Method: method, Path: name, Summary: o.Summary,
		Text: texts(at.Description, o.Description), Deprecated: o.Deprecated, Access: p.access(o),
	}
	if v.Summary == "" {
		v.Summary = at.Summary
	}
	if o.OperationID == "" {
		v.Anchor = "op-" + slug(method+name)
	}
	for segment := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		v.Pieces = append(v.Pieces, part{Text: "/"})
		end := 0
		for _, found := range placeholder.FindAllStringIndex(segment, -1) {
			v.Pieces = append(v.Pieces, part{Text: segment[end:found[0]]}, part{segment[found[0]:found[1]], "placeholder"})
			end = found[1]
		}
		v.Pieces = append(v.Pieces, part{Text: segment[end:]})
	}

	parameters := p.parameters(at.Parameters, o.Parameters)
	for _, of := range parameters {
		v.Parameters = append(v.Parameters, p.parameter(of))
	}
	var body requestBody
	if o.RequestBody != nil {
		if body = *o.RequestBody; body.Ref != "" {
			body = find(p, p.Components.RequestBodies, "requestBodies", body.Ref)
		}
		v.Body = &bodyView{Required: body.Required, Text: texts(body.Description), Contents: p.contents(body.Content)}
	}
	stream := false
	for _, e := range o.Responses {
		a := p.answer(e.Name, e.Value)
		v.Answers = append(v.Answers, a)
		for _, c := range a.Contents {
			stream = stream || c.Stream
		}
	}
	v.Curl = p.curl(v, parameters, body, stream)
	return v
}

// parameters merges the lists of the path's and the operation's parameters. A parameter in a later
// list replaces a parameter with the same name in an earlier list.
func (p *pager) parameters(lists ...[]parameter) []parameter {
	var all []parameter
	for _, of := range slices.Concat(lists...) {
		if of.Ref != "" {
			of = find(p, p.Components.Parameters, "parameters", of.Ref)
		}
		at := slices.IndexFunc(all, func(earlier parameter) bool { return earlier.Name == of.Name && earlier.In == of.In })
		if at < 0 {
			all = append(all, of)
		} else {
			all[at] = of
		}
	}
	return all
}

func (p *pager) parameter(of parameter) parameterView {
	s := p.schema(of.Schema)
	v := parameterView{
		Name: of.Name, In: of.In, Required: of.Required, Deprecated: of.Deprecated, Type: s.Type, Rules: s.Rules,
		Text: append(texts(of.Description), s.Text...), Examples: p.examples(nil, of.Examples),
	}
	if of.Explode != nil && !*of.Explode {
		v.Rules = append(v.Rules, rule{"several with commas between them", nil})
	}
	if of.Example != nil {
		v.Rules = append(v.Rules, rule{"for example", []string{of.Example.String()}})
	}
	return v
}

func (p *pager) schema(s *schema) schemaView {
	if s == nil {
		return schemaView{Type: p.typeOf(s)}
	}
	return schemaView{Text: texts(s.Title, s.Description), Type: p.typeOf(s), Rules: p.rulesOf(s), Rows: p.rowsOf(s, 0)}
}

func (p *pager) answer(status string, r response) answerView {
	if r.Ref != "" {
		r = find(p, p.Components.Responses, "responses", r.Ref)
	}
	v := answerView{Status: status, Class: "s" + status[:1], Text: texts(r.Summary, r.Description), Contents: p.contents(r.Content)}
	if code, err := strconv.Atoi(status); err == nil {
		v.Phrase = http.StatusText(code)
	} else if status == "default" {
		v.Status, v.Phrase = "other", "Any other status"
	}
	for _, h := range r.Headers {
		of := h.Value
		if of.Ref != "" {
			of = find(p, p.Components.Headers, "headers", of.Ref)
		}
		of.Name = h.Name
		v.Headers = append(v.Headers, p.parameter(of))
	}
	return v
}

func (p *pager) contents(of ordered[media]) []contentView {
	var all []contentView
	for _, m := range of {
		all = append(all, contentView{
			Media: m.Name, Stream: strings.HasPrefix(m.Name, "text/event-stream"),
			Schema: p.schema(m.Value.Schema), Examples: p.examples(m.Value.Example, m.Value.Examples),
		})
	}
	return all
}

func (p *pager) examples(one *literal, named ordered[namedExample]) []exampleView {
	var all []exampleView
	if one != nil {
		all = append(all, exampleView{Code: indented(*one)})
	}
	for _, e := range named {
		of := e.Value
		if of.Ref != "" {
			of = find(p, p.Components.Examples, "examples", of.Ref)
		}
		x := exampleView{Name: e.Name, Text: texts(of.Summary, of.Description)}
		if of.Value != nil {
			x.Code = indented(*of.Value)
		}
		all = append(all, x)
	}
	return all
}

func indented(l literal) string {
	var b bytes.Buffer
	if text := l.String(); text != string(l) || json.Indent(&b, []byte(l), "", "  ") != nil {
		return text
	}
	return b.String()
}

func pathEscape(text string) string { return strings.ReplaceAll(url.PathEscape(text), "'", "%27") }
