package source

import (
	"net/http"
	"strings"
	"testing"
)

func TestARuleCanSayThatSomethingIsMissing(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) {
		c.Rules = []Rule{
			{Status: 200, Header: &Match{Name: "x-version", Missing: true}, Class: Maintenance},
			{Status: 200, Body: &Match{Name: "page.items", Missing: true}, Class: Absent},
			{Status: 400, Header: &Match{Name: "x-version"}, Body: &Match{Name: "error", Missing: true}, Class: NotReady},
		}
	})
	versioned, bare := header("X-Version", ""), http.Header{}
	for i, c := range []struct {
		status int
		header http.Header
		body   string
		want   Class
	}{
		{200, bare, `{"page":{"items":[]}}`, Maintenance},
		{200, versioned, `{"page":{"items":[]}}`, OK},
		{200, versioned, `{"page":{"items":null}}`, OK}, // null is there
		{200, versioned, `{"page":{}}`, Absent},
		{200, versioned, ` {"items":[]} `, Absent},
		{200, versioned, `[]`, Absent},
		{200, versioned, `null`, Absent},
		// What is no JSON lacks no member: the reading will say what is wrong with it.
		{200, versioned, ``, OK},
		{200, versioned, `<html>`, OK},
		{200, versioned, `{"page":`, OK},
		{200, versioned, `{"page":{}} {}`, OK},
		{200, versioned, strings.Repeat("[", 1<<20), OK},
		{200, versioned, strings.Repeat(`{"a":`, 1<<20), OK},
		{400, versioned, `{}`, NotReady},
		{400, versioned, `{"error":1}`, Permanent},
		{400, bare, `{}`, Permanent},
		{304, bare, ``, NotModified},
	} {
		if got := s.classify(c.status, c.header, []byte(c.body)); got != c.want {
			t.Errorf("case %d: %d %v %.40s is %s, want %s", i, c.status, c.header, c.body, got, c.want)
		}
	}
	if o := read(t, s, answer{status: 200, header: versioned, body: []byte("<html>")}); o.Class != BadContent {
		t.Errorf("an error page is %s", o.Class)
	}
	if o := read(t, s, answer{status: 200, header: versioned, body: []byte(`{"page":{}}`)}); o.Class != Absent {
		t.Errorf("the walk that looks for JSON broke the one that reads: %s, %v", o.Class, o.Err)
	}
	if o := read(t, s, answer{status: 200, header: versioned, body: []byte(`{"page":{"items":[1]}}`)}); o.Class != OK || string(o.Content.JSON) != `{"doc":{"page":{"items":[1]}}}` {
		t.Errorf("%+v", o)
	}
}
