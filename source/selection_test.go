package source

import (
	"strings"
	"testing"
)

// selecting returns a source with the facet "character" whose only document is "doc".
func selecting(t testing.TB, selected ...string) *Source {
	t.Helper()
	return testSource(t, "http://upstream.example", func(c *Config) {
		f := c.Facets["character"]
		f.Select = selected
		c.Facets["character"] = f
	})
}

// A selection that finds nothing must not be stored as a FRESH {}.
func TestRead_SelectionThatFindsNothingIsBadContent(t *testing.T) {
	for name, c := range map[string]struct {
		selected []string
		body     string
		mention  string // text that the error must contain; empty means that the content is valid
	}{
		"a member":                      {[]string{"doc.data.name"}, `{"data":{"name":"a"}}`, ""},
		"another member":                {[]string{"doc.data.name"}, `{"data":{"title":"a","id":1}}`, `select "doc.data.name" finds nothing: doc.data has no member "name"; it has "id", "title"`},
		"no parent":                     {[]string{"doc.data.name"}, `{"meta":{}}`, `doc has no member "data"; it has "meta"`},
		"an empty object":               {[]string{"doc.data"}, `{}`, `doc has no member "data"; it has none`},
		"null":                          {[]string{"doc.data.name"}, `{"data":null}`, "doc.data is null"},
		"a null member":                 {[]string{"doc.data"}, `{"data":null}`, ""},
		"a text document":               {[]string{"doc.data"}, `"maintenance"`, "doc is neither an object nor a list"},
		"a null document":               {[]string{"doc.data"}, `null`, "doc is null"},
		"an empty list":                 {[]string{"doc.items"}, `{"items":[]}`, ""},
		"a wildcard in an empty list":   {[]string{"doc.items.*.id"}, `{"items":[]}`, ""},
		"a wildcard in an empty object": {[]string{"doc.items.*.id"}, `{"items":{}}`, ""},
		"a wildcard":                    {[]string{"doc.items.*.id"}, `{"items":[{"name":"a"},{"id":1}]}`, ""},
		"a wildcard without a match":    {[]string{"doc.items.*.id"}, `{"items":[{"name":"a"},{}]}`, "doc.items.* has no member"},
		"an index":                      {[]string{"doc.0.id"}, `[{"id":1}]`, ""},
		"an index of an empty list":     {[]string{"doc.0.id"}, `[]`, ""},
		"a missing index":               {[]string{"doc.3.id"}, `[{"id":1}]`, "doc has only 1 element(s)"},
		"a negative index":              {[]string{"doc.-1.id"}, `[{"id":1}]`, "doc is a list; write * or an index"},
		"a name in a list":              {[]string{"doc.id"}, `[{"id":1}]`, "doc is a list; write * or an index"},
		"one of two paths":              {[]string{"doc.name", "doc.discount"}, `{"name":"a"}`, ""},
		"none of two paths":             {[]string{"doc.label", "doc.discount"}, `{"name":"a"}`, "the other 1 selected paths"},
		"a wildcard document":           {[]string{"*.label"}, `{"name":"a"}`, `select "*.label" finds nothing`},
		"the whole document":            {[]string{"doc"}, `{}`, ""},
		"a large number":                {[]string{"doc.label"}, `{"name":1e999}`, `has no member "label"`},
		"many members":                  {[]string{"doc.z"}, `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1}`, `"j" and 2 more`},
		"an escaped name":               {[]string{`doc.a\.b.c`}, `{"a.b":{}}`, `doc.a\.b has no member "c"`},
	} {
		o := read(t, selecting(t, c.selected...), response{status: 200, header: header("Content-Type", "application/json"), body: []byte(c.body)})
		switch {
		case c.mention == "" && o.Class != OK:
			t.Errorf("%s: got class %s (%v), want ok", name, o.Class, o.Err)
		case c.mention != "" && o.Class != BadContent:
			t.Errorf("%s: got class %s, want bad-content", name, o.Class)
		case c.mention != "" && !strings.Contains(o.Err.Error(), c.mention):
			t.Errorf("%s: got error %v, want one with %q", name, o.Err, c.mention)
		}
		if o.Content != nil {
			o.Content.Release()
		}
	}
}

// An error must not contain a credential that the upstream uses as a member name.
func TestRead_SelectionErrorHasNoCredential(t *testing.T) {
	s := selecting(t, "doc.data")
	if err := setCredentials(s, map[string]string{"": "the-secret-1234"}); err != nil {
		t.Fatal(err)
	}
	if o := read(t, s, response{status: 200, body: []byte(`{"the-secret-1234":1}`)}); o.Err == nil || strings.Contains(o.Err.Error(), "the-secret") {
		t.Errorf("error: got %v, want one without the credential", o.Err)
	}
}

func TestCompileFacet_ChecksDocumentsOfPaths(t *testing.T) {
	one, two := map[string]Document{"product": {Path: "/{key}"}}, map[string]Document{"a": {Path: "/{key}"}, "b.c": {Path: "/{key}"}}
	for name, c := range map[string]struct {
		documents        map[string]Document
		selected, ignore []string
		mention          string
	}{
		"no document":        {one, []string{"data.name"}, nil, `select[0]: "data.name" must begin with a document of the facet, which has product, or with *; write "product.data.name"`},
		"an ignore":          {one, nil, []string{"*.date", "meta.requestId"}, `ignore[1]: "meta.requestId" must begin with a document`},
		"several documents":  {two, []string{"a.x", "c.x"}, nil, `select[1]: "c.x" must begin with a document of the facet, which has a, b.c, or with *`},
		"an unescaped dot":   {two, []string{"b.c.x"}, nil, `select[0]: "b.c.x" must begin with`},
		"an escaped dot":     {two, []string{`b\.c.x`}, nil, ""},
		"a wildcard":         {two, []string{"*.x"}, []string{"*"}, ""},
		"the whole document": {one, []string{"product"}, nil, ""},
		"an empty name":      {one, []string{"product..x"}, nil, "empty name"},
	} {
		f := DefaultFacet()
		f.Documents, f.Select, f.Ignore = c.documents, c.selected, c.ignore
		_, err := compileFacet(f, Auth{})
		if c.mention == "" && err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
		}
		if c.mention != "" && (err == nil || !strings.Contains(err.Error(), c.mention)) {
			t.Errorf("%s: got error %v, want one with %q", name, err, c.mention)
		}
	}
}
