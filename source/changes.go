package source

import (
	"bytes"
	"encoding/json"
	"strings"
)

// OnlyChangedMember compares two contents of a facet, as they are in Content.JSON. If exactly one
// value differs, it returns the path of this value, as the setting ignore has it. The same member of
// several elements of a list counts as one. Ignored values are skipped. ok is false if several
// members differ, if none does, or if lists or objects have gained or lost elements.
func (s *Source) OnlyChangedMember(facet string, before, after []byte) (member string, ok bool) {
	f, known := s.facets[facet]
	if !known {
		return "", false
	}
	var a, b any
	if parseExact(before, &a) != nil || parseExact(after, &b) != nil {
		return "", false
	}
	c := comparison{}
	single := c.compare(a, b, f.paths, nil)
	return c.path, single && c.path != ""
}

// parseExact parses JSON and keeps numbers as they are written.
func parseExact(text []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

// comparison holds the path of the only difference found so far; empty: none.
type comparison struct{ path string }

// compare compares the values below a path. It returns false if they differ in anything but one
// member.
func (c *comparison) compare(a, b any, n *pathNode, at []string) bool {
	if n.ignored {
		return true
	}
	switch a := a.(type) {
	case map[string]any:
		b, same := b.(map[string]any)
		if !same {
			return false
		}
		for name := range b {
			if _, known := a[name]; !known && !n.member([]byte(canonicalName(name))).ignored {
				return false
			}
		}
		for name, before := range a {
			child := n.member([]byte(canonicalName(name)))
			after, known := b[name]
			if !known && !child.ignored {
				return false
			}
			if known && !c.compare(before, after, child, append(at, escapePathName(name))) {
				return false
			}
		}
		return true
	case []any:
		b, same := b.([]any)
		if !same || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !c.compare(a[i], b[i], n.element(i), append(at, "*")) {
				return false
			}
		}
		return true
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	if a == b {
		return true
	}
	path := strings.Join(at, ".")
	if c.path != "" && c.path != path {
		return false
	}
	c.path = path
	return true
}
