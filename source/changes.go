package source

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"
)

// OnlyChangedMember compares two contents of a facet, each in the form of Content.Bytes. If exactly
// one value differs, it returns the path of this value, as the path is written in the setting
// `ignore`. If the same member differs in several elements of a list, it counts as one value. Ignored
// values are skipped. `ok` is false if several members differ, if no member differs, or if a list or
// an object has gained or lost elements.
func (s *Source) OnlyChangedMember(facet string, before, after []byte) (member string, ok bool) {
	f, known := s.facets[facet]
	if !known {
		return "", false
	}
	for path, scalars := range differences(before, after, f.paths) {
		if !scalars || member != "" && member != path {
			return "", false
		}
		member = path
	}
	return member, member != ""
}

// ChangedPaths returns the paths of the values that differ between two JSON texts, in the form of the
// settings `select` and `ignore`, sorted. An index of a list is written "*".
func ChangedPaths(before, after []byte) []string {
	paths := map[string]bool{}
	for path := range differences(before, after, keepAll) {
		paths[path] = true
	}
	return slices.Sorted(maps.Keys(paths))
}

// differences returns each difference between two JSON texts: its path, and whether both values are
// scalars. It skips the values that the setting `ignore`, compiled into n, selects. A text that is not
// JSON is like the text null.
func differences(before, after []byte, n *pathNode) iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		walkDifferences(parseExact(before), parseExact(after), n, nil, yield)
	}
}

// parseExact parses JSON and keeps numbers as they are written. It returns nil for invalid JSON.
func parseExact(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	return v
}

// walkDifferences yields the differences below a path. It returns false if yield did.
func walkDifferences(a, b any, n *pathNode, at []string, yield func(path string, scalars bool) bool) bool {
	if n.ignored {
		return true
	}
	switch a := a.(type) {
	case map[string]any:
		b, same := b.(map[string]any)
		if !same {
			break
		}
		for name, before := range a {
			child, below := n.member([]byte(canonicalName(name))), append(at, escapePathName(name))
			if after, known := b[name]; known && !walkDifferences(before, after, child, below, yield) {
				return false
			} else if !known && !child.ignored && !yield(strings.Join(below, "."), false) {
				return false
			}
		}
		for name := range b {
			if _, known := a[name]; !known && !n.member([]byte(canonicalName(name))).ignored && !yield(strings.Join(append(at, escapePathName(name)), "."), false) {
				return false
			}
		}
		return true
	case []any:
		b, same := b.([]any)
		if !same || len(a) != len(b) {
			break
		}
		for i := range a {
			if !walkDifferences(a[i], b[i], n.element(i), append(at, "*"), yield) {
				return false
			}
		}
		return true
	default:
		if a == b {
			return true
		}
		_, isObject := b.(map[string]any)
		_, isList := b.([]any)
		return yield(strings.Join(at, "."), !isObject && !isList)
	}
	return yield(strings.Join(at, "."), false)
}
