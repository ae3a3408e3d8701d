package trial

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/freshet/freshet/schemas"
)

// maxPrinted bounds the content that WriteText prints, in bytes.
const maxPrinted = 600

// WriteText prints the report as a table with one fact a line.
func (r Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { _, _ = fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	for _, d := range r.Documents {
		row("call", "%s %s", d.Method, d.URL)
		if d.RedirectedTo != "" {
			row("redirect", "%s", d.RedirectedTo)
		}
		size := Size(d.Bytes)
		if d.WireBytes != d.Bytes {
			size += fmt.Sprintf(" (%s compressed)", Size(d.WireBytes))
		}
		facts := []string{Status(d.Status)}
		if d.ContentType != "" {
			facts = append(facts, d.ContentType)
		}
		row("response", "%s", strings.Join(append(facts, size, fmt.Sprintf("%d ms", d.TookMs)), ", "))
		row("class", "%s, decided by %s", d.Class, d.DecidedBy)
		if d.Sample != "" {
			row("body", "%s", d.Sample)
		}
		for _, l := range d.Limits {
			row("limit", "%s", l.text())
		}
		if len(d.Limits) == 0 {
			row("limit", "%s", orNone(d.LimitHeaders, "no rule of announced reads it: ", "the headers report none"))
		}
		if d.ETag != "" {
			row("validator", "ETag %s", d.ETag)
		} else if d.LastModified != "" {
			row("validator", "Last-Modified %s", d.LastModified)
		}
		if d.NextPage != "" {
			row("next page", "%s (not called)", d.NextPage)
		}
	}
	if r.RetryAfter != "" {
		row("wait", "%s, as the upstream requests", r.RetryAfter)
	}
	for _, list := range []struct {
		name  string
		paths []Path
	}{{"select", r.Select}, {"ignore", r.Ignore}} {
		for _, p := range list.paths {
			row(list.name, "%s: %s", p.Path, Plural(p.Values, "value"))
		}
	}
	if r.Content != nil {
		row("stored", "%s, hash %s", Size(r.Bytes), r.Hash[:12])
		text := cut(Printable(string(r.Content)), maxPrinted)
		if len(r.Content) > maxPrinted {
			text += " (all of it with -o json)"
		}
		row("content", "%s", text)
	}
	if c := r.Changed; c != nil {
		switch {
		case c.Second != "":
			row("twice", "the second response has the class %s, so nothing was compared", c.Second)
		case len(c.Members) == 0:
			row("twice", "both contents are equal")
		default:
			row("twice", "%s differ; %s change the hash", Plural(len(c.Members), "member"), Plural(len(c.Hashed), "member"))
			for i, path := range c.Members {
				if i == 20 {
					row("", "and %d more", len(c.Members)-i)
					break
				}
				row("", "%s", path)
			}
		}
	}
	for i, text := range r.Advice {
		name := ""
		if i == 0 {
			name = "advice"
		}
		row(name, "%s", text)
	}
	return t.Flush()
}

func (l ReportedLimit) text() string {
	text := l.Policy + ":"
	switch {
	case l.Remaining != nil && l.Limit != nil:
		text += fmt.Sprintf(" %d of %d remain", *l.Remaining, *l.Limit)
	case l.Remaining != nil:
		text += fmt.Sprintf(" %d remain", *l.Remaining)
	case l.Limit != nil:
		text += fmt.Sprintf(" limit %d", *l.Limit)
	}
	if l.Reset != "" {
		text += ", reset in " + l.Reset
		if d, err := time.ParseDuration(l.Reset); err == nil {
			text = strings.TrimSuffix(text, l.Reset) + schemas.FormatDuration(d)
		}
	}
	if l.Resource != "" {
		text += ", resource " + l.Resource
	}
	if l.Cost != nil {
		text += fmt.Sprintf(", cost %d", *l.Cost)
	}
	return text
}

func orNone(all []string, before, none string) string {
	if len(all) == 0 {
		return none
	}
	return before + strings.Join(all, ", ")
}

// Plural returns a number with its noun: 1 value, 2 values.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
