package trial

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/announced"
)

func describeDocument(in source.Inspection, config source.Config, took time.Duration, mask func(string) string) Document {
	d := Document{
		Name: in.Document, Method: in.Method, URL: mask(in.Planned), Status: in.Status, ContentType: cut(Printable(in.Header.Get("Content-Type")), 100),
		WireBytes: in.WireBytes, Bytes: len(in.Body), TookMs: took.Milliseconds(), Class: string(in.Class), DecidedBy: decidedBy(in, config.Rules),
		ETag: cut(Printable(in.Header.Get("Etag")), 200), LastModified: cut(Printable(in.Header.Get("Last-Modified")), 100), NextPage: mask(in.Next),
	}
	if in.URL != in.Planned {
		d.RedirectedTo = mask(in.URL)
	}
	if in.Class != source.OK {
		d.Sample = cut(Printable(strings.Join(strings.Fields(string(in.Body[:min(len(in.Body), 400)])), " ")), 200)
	}
	for _, n := range in.Notices {
		l := ReportedLimit{Policy: n.Policy, Resource: n.Resource, Limit: known(n.Limit), Remaining: known(n.Remaining), Cost: known(n.Cost)}
		if n.Reset >= 0 {
			l.Reset = n.Reset.Round(time.Second).String()
		}
		d.Limits = append(d.Limits, l)
	}
	found, unread := announced.Detect(in.Header, time.Now())
	for _, f := range found {
		for _, header := range f.Headers {
			d.LimitHeaders = append(d.LimitHeaders, Printable(header))
		}
	}
	for _, header := range unread {
		d.LimitHeaders = append(d.LimitHeaders, Printable(header))
	}
	return d
}

func known(n int64) *int64 {
	if n == announced.Unknown {
		return nil
	}
	return &n
}

// Printable returns a text of an upstream without characters that control a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// cut returns at most n bytes of a text.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

// describeRule returns the index and the conditions of a rule, as in
// "rules[2] {status: 429, body: error.code}".
func describeRule(i int, r source.Rule) string {
	var conditions []string
	if r.Status != 0 {
		conditions = append(conditions, "status: "+strconv.Itoa(r.Status))
	}
	if r.ContentType != "" {
		conditions = append(conditions, "contentType: "+r.ContentType)
	}
	if r.Text != "" {
		conditions = append(conditions, fmt.Sprintf("text: %q", r.Text))
	}
	for _, part := range []struct {
		name string
		*source.Match
	}{{"header", r.Header}, {"body", r.Body}} {
		name, m := part.name, part.Match
		switch {
		case m == nil:
		case m.Missing:
			conditions = append(conditions, fmt.Sprintf("%s: %s missing", name, m.Name))
		case m.Equals != "":
			conditions = append(conditions, fmt.Sprintf("%s: %s equals %q", name, m.Name, m.Equals))
		case m.Matches != "":
			conditions = append(conditions, fmt.Sprintf("%s: %s matches %q", name, m.Name, m.Matches))
		default:
			conditions = append(conditions, fmt.Sprintf("%s: %s exists", name, m.Name))
		}
	}
	return fmt.Sprintf("rules[%d] {%s}", i, strings.Join(conditions, ", "))
}

// Status returns a status with its name, as in "404 Not Found".
func Status(code int) string {
	if code == 0 {
		return "no response"
	}
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// Size formats a length in bytes, as in "1.2 kB".
func Size(n int) string {
	switch {
	case n < 1000:
		return strconv.Itoa(n) + " B"
	case n < 1000_000:
		return strconv.FormatFloat(float64(n)/1e3, 'f', 1, 64) + " kB"
	}
	return strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64) + " MB"
}
