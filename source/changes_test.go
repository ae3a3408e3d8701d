package source

import (
	"strings"
	"testing"
)

func TestOnlyChangedMember_FindsTheMember(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) {
		f := c.Facets["character"]
		f.Ignore = []string{"doc.date"}
		c.Facets["character"] = f
	})
	for name, c := range map[string]struct{ before, after, want string }{
		"one member":                 {`{"doc":{"meta":{"requestId":"a"},"n":1}}`, `{"doc":{"meta":{"requestId":"b"},"n":1}}`, "doc.meta.requestId"},
		"an ignored one too":         {`{"doc":{"date":1,"id":"a"}}`, `{"doc":{"date":2,"id":"b"}}`, "doc.id"},
		"an ignored one is new":      {`{"doc":{"id":"a"}}`, `{"doc":{"date":2,"id":"b"}}`, "doc.id"},
		"an ignored one is missing":  {`{"doc":{"date":2,"id":"a"}}`, `{"doc":{"id":"b"}}`, "doc.id"},
		"a member of all elements":   {`{"doc":[{"at":1,"n":1},{"at":1,"n":2}]}`, `{"doc":[{"at":2,"n":1},{"at":3,"n":2}]}`, "doc.*.at"},
		"a value of another kind":    {`{"doc":{"id":null}}`, `{"doc":{"id":"b"}}`, "doc.id"},
		"a name with a dot":          {`{"doc":{"a.b":1}}`, `{"doc":{"a.b":2}}`, `doc.a\.b`},
		"a number as it is written":  {`{"doc":{"n":12345678901234567890}}`, `{"doc":{"n":12345678901234567891}}`, "doc.n"},
		"two members":                {`{"doc":{"a":1,"b":1}}`, `{"doc":{"a":2,"b":2}}`, ""},
		"none":                       {`{"doc":{"a":1}}`, `{"doc":{"a":1}}`, ""},
		"only an ignored one":        {`{"doc":{"date":1}}`, `{"doc":{"date":2}}`, ""},
		"a new member":               {`{"doc":{"a":1}}`, `{"doc":{"a":2,"b":1}}`, ""},
		"a lost member":              {`{"doc":{"a":1,"b":1}}`, `{"doc":{"a":2}}`, ""},
		"a longer list":              {`{"doc":[1]}`, `{"doc":[2,3]}`, ""},
		"an object in place of text": {`{"doc":{"a":"x"}}`, `{"doc":{"a":{}}}`, ""},
		"text in place of an object": {`{"doc":{"a":{}}}`, `{"doc":{"a":"x"}}`, ""},
		"no JSON":                    {`{"doc":`, `{"doc":1}`, ""},
	} {
		got, ok := s.OnlyChangedMember("character", []byte(c.before), []byte(c.after))
		if ok != (c.want != "") {
			t.Errorf("%s: got ok %v (%q), want %v", name, ok, got, c.want != "")
		}
		if ok && got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if _, ok := s.OnlyChangedMember("unknown", []byte("1"), []byte("2")); ok {
		t.Error("unknown facet: got ok, want not ok")
	}
}

func TestChangedPaths_ListsEachDifference(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{`{"a":1}`, `{"a":1}`, ""},
		{`{"a":1}`, `{"a":1.0}`, "a"},
		{`{"a":1}`, `{}`, "a"},
		{`{}`, `{"a":{"b":1}}`, "a"},
		{`{"a":{"b":1,"c":2}}`, `{"a":{"b":2,"c":2}}`, "a.b"},
		{`{"a":[1,2]}`, `{"a":[1]}`, "a"},
		{`{"a":[{"b":1},{"b":2}]}`, `{"a":[{"b":3},{"b":4}]}`, "a.*.b"},
		{`{"a":null}`, `{"a":{}}`, "a"},
		{`{"a.b":{"c\\d":1}}`, `{"a.b":{"c\\d":2}}`, `a\.b.c\\d`},
		{`{"b":1,"a":1}`, `{"b":2,"a":2}`, "a b"},
	} {
		if got := strings.Join(ChangedPaths([]byte(c.a), []byte(c.b)), " "); got != c.want {
			t.Errorf("%s and %s: got %q, want %q", c.a, c.b, got, c.want)
		}
	}
}
