package source

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// keyParam is the placeholder for the entity's key.
const keyParam = "key"

// template is text with {placeholders}. literals and names alternate; there is one more literal
// than names.
type template struct {
	literals []string
	names    []string
}

// parseTemplate parses a text in which {+key} is not allowed.
func parseTemplate(text string) (template, error) {
	t, err := parsePathTemplate(text)
	for _, name := range t.names {
		if strings.HasPrefix(name, "+") {
			return template{}, fmt.Errorf("%q uses {%s}; only {+key} has this form, and only in the path of a document; write {%s}", text, name, name[1:])
		}
	}
	return t, err
}

// parsePathTemplate parses a text that may contain {+key}.
func parsePathTemplate(text string) (template, error) {
	var t template
	rest := text
	for {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return template{}, fmt.Errorf("%q has a } without a {", text)
		}
		t.literals = append(t.literals, literal)
		if !found {
			return t, nil
		}
		name, after, found := strings.Cut(after, "}")
		if !found || name == "" || strings.ContainsAny(name, "{/?&=#") {
			return template{}, fmt.Errorf("%q has a { without a name and a closing }", text)
		}
		t.names = append(t.names, name)
		rest = after
	}
}

// placeholders returns the names of the placeholders. {+key} has the name key.
func (t template) placeholders() []string {
	if !t.hasKeyPath() {
		return t.names
	}
	names := slices.Clone(t.names)
	for i, name := range names {
		if name == keyPathParam {
			names[i] = keyParam
		}
	}
	return names
}

// hasKeyPath reports whether the text contains {+key}.
func (t template) hasKeyPath() bool { return slices.Contains(t.names, keyPathParam) }

// fill returns the text with each placeholder replaced by value(name).
func (t template) fill(value func(name string) string) string {
	var b strings.Builder
	for i, name := range t.names {
		b.WriteString(t.literals[i])
		b.WriteString(value(name))
	}
	b.WriteString(t.literals[len(t.names)])
	return b.String()
}

// target is a compiled path and query. It is split before placeholders are filled, and each
// value is percent-encoded within its path segment or query value. A value can therefore not
// change the structure of the URL.
type target struct {
	segments []template
	names    []string // names of the query parameters, as written in the configuration
	values   []template
}

func parseTarget(text string) (target, error) {
	var t target
	if !strings.HasPrefix(text, "/") {
		return target{}, fmt.Errorf("%q must begin with /", text)
	}
	if strings.Contains(text, "#") {
		return target{}, fmt.Errorf("%q must have no fragment", text)
	}
	path, query, hasQuery := strings.Cut(text[1:], "?")
	for segment := range strings.SplitSeq(path, "/") {
		parsed, err := parsePathTemplate(segment)
		if err != nil {
			return target{}, err
		}
		for _, name := range parsed.names {
			if strings.HasPrefix(name, "+") && name != keyPathParam {
				return target{}, fmt.Errorf("%q uses {%s}; only the key can have several segments: write {+key}", text, name)
			}
		}
		if segment == "." || segment == ".." {
			return target{}, fmt.Errorf("%q must have no segment %q", text, segment)
		}
		t.segments = append(t.segments, parsed)
	}
	if hasQuery {
		for pair := range strings.SplitSeq(query, "&") {
			name, value, _ := strings.Cut(pair, "=")
			if name == "" || strings.ContainsAny(name, "{}") {
				return target{}, fmt.Errorf("%q needs a literal name for each query parameter", text)
			}
			parsed, err := parseTemplate(value)
			if err != nil {
				return target{}, err
			}
			t.names, t.values = append(t.names, name), append(t.values, parsed)
		}
	}
	// Literals are not escaped, so check that they form a valid URL if every value is "x".
	if _, err := url.ParseRequestURI(t.mustFill("x")); err != nil {
		return target{}, err
	}
	return t, nil
}

func (t target) mustFill(value string) string {
	filled, _ := t.fill(func(string) string { return value })
	return filled
}

func (t target) placeholders() []string {
	var names []string
	for _, s := range t.segments {
		names = append(names, s.placeholders()...)
	}
	for _, v := range t.values {
		names = append(names, v.placeholders()...)
	}
	return names
}

// size returns the number of bytes that are not values, and the number of placeholders.
func (t target) size() (literals, placeholders int) {
	for _, part := range append(slices.Clone(t.segments), t.values...) {
		for _, text := range part.literals {
			literals += len(text)
		}
		literals++ // count the delimiter before the segment or the value
		placeholders += len(part.names)
	}
	for _, name := range t.names {
		literals += len(name) + 1
	}
	return literals, placeholders
}

// maxTargetBytes bounds path and query in bytes. Most servers reject a longer request line.
const maxTargetBytes = 8 << 10

// fill returns path and query with percent-encoded values.
func (t target) fill(value func(name string) string) (string, error) {
	encoded := func(name string) string {
		if name == keyPathParam {
			return encodeSegments(value(keyParam))
		}
		return percentEncode(value(name))
	}
	var b strings.Builder
	for _, segment := range t.segments {
		text := segment.fill(encoded)
		// Servers remove the segments "." and "..", so the request would reach another path. A value
		// can produce such a segment, because percentEncode keeps dots. An empty segment would
		// change the position of the segments after it. The key of {+key} fills several segments.
		for part := range strings.SplitSeq(text, "/") {
			name := part
			if segment.hasKeyPath() { // some servers cut a segment at an encoded semicolon
				name, _, _ = strings.Cut(part, "%3B")
			}
			if name == "." || name == ".." || (part == "" && len(segment.names) > 0) {
				return "", fmt.Errorf("a value makes the path segment %q, which would change the path", part)
			}
		}
		b.WriteByte('/')
		b.WriteString(text)
	}
	for i, v := range t.values {
		if i == 0 {
			b.WriteByte('?')
		} else {
			b.WriteByte('&')
		}
		b.WriteString(t.names[i])
		b.WriteByte('=')
		b.WriteString(v.fill(encoded))
	}
	if b.Len() > maxTargetBytes {
		return "", errors.New("with these values the path is longer than 8 KiB")
	}
	return b.String(), nil
}

// percentEncode encodes all characters except RFC 3986's unreserved ones. So no character of the
// result is a delimiter in a path or a query.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			c == '-' || c == '.' || c == '_' || c == '~' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}
