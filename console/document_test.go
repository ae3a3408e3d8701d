package console

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"golang.org/x/net/html"
)

// reply is an HTTP response that was not parsed as HTML.
type reply struct {
	status  int
	header  http.Header
	cookies []*http.Cookie
	body    string
}

func (r *rig) do(method, path string, form url.Values, headers ...string) reply {
	r.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	q := httptest.NewRequestWithContext(r.t.Context(), method, path, body)
	q.RemoteAddr = "192.0.2.7:4711"
	if form != nil {
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, q)
	kept := http.Response{Header: w.Header()}
	return reply{w.Code, w.Header(), kept.Cookies(), w.Body.String()}
}

// document is an HTTP response that was parsed as HTML.
type document struct {
	status int
	header http.Header
	root   *html.Node
}

func (r *rig) open(method, path string, form url.Values, headers ...string) document {
	r.t.Helper()
	answer := r.do(method, path, form, headers...)
	root, err := html.Parse(strings.NewReader(answer.body))
	if err != nil {
		r.t.Fatal(err)
	}
	return document{answer.status, answer.header, root}
}

// linksTo returns the number of links to a path in the document.
func (d document) linksTo(path string) (n int) {
	d.each(func(e *html.Node) {
		if e.Data == "a" && attr(e, "href") == path {
			n++
		}
	})
	return n
}

// formOf returns the hidden fields of the form that is sent to this URL.
func (d document) formOf(action string) url.Values {
	form := url.Values{}
	d.each(func(n *html.Node) {
		if n.Data != "form" || attr(n, "action") != action || attr(n, "method") != "post" {
			return
		}
		for c := range n.Descendants() {
			if c.Data == "input" && attr(c, "type") == "hidden" {
				form.Set(attr(c, "name"), attr(c, "value"))
			}
		}
	})
	return form
}

func (r *rig) get(path string, headers ...string) document {
	return r.open("GET", path, nil, headers...)
}

// each calls f for all elements of the document.
func (d document) each(f func(n *html.Node)) {
	for n := range d.root.Descendants() {
		if n.Type == html.ElementNode {
			f(n)
		}
	}
}

func (d document) byID(id string) *html.Node {
	var found *html.Node
	d.each(func(n *html.Node) {
		if attr(n, "id") == id && found == nil {
			found = n
		}
	})
	return found
}

// textByID returns the text of the element with this id. Each series of white space is replaced by
// one space.
func (d document) textByID(id string) string { return textOf(d.byID(id)) }

func (d document) text() string { return textOf(d.root) }

func textOf(n *html.Node) string {
	if n == nil {
		return "(there is no such element)"
	}
	var all strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			all.WriteString(c.Data + " ")
		}
	}
	return strings.Join(strings.Fields(all.String()), " ")
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}
