package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// checkDocumentNames returns an error if a path in the setting "select" or "ignore" does not begin
// with the name of a document of the facet. Such a path would have no effect.
func (f Facet) checkDocumentNames() error {
	documents := slices.Sorted(maps.Keys(f.Documents))
	for _, list := range []struct {
		setting string
		paths   []string
	}{{"select", f.Select}, {"ignore", f.Ignore}} {
		for i, text := range list.paths {
			p, err := parsePath(text)
			if err != nil {
				return fmt.Errorf("%s[%d]: %w", list.setting, i, err)
			}
			if p[0] == "*" || slices.ContainsFunc(documents, func(d string) bool { return canonicalName(d) == p[0] }) {
				continue
			}
			advice := ""
			if len(documents) == 1 {
				advice = fmt.Sprintf("; write %q", escapePathName(documents[0])+"."+text)
			}
			return fmt.Errorf("%s[%d]: %q must begin with a document of the facet, which has %s, or with *%s",
				list.setting, i, text, strings.Join(documents, ", "), advice)
		}
	}
	return nil
}

// escapePathName returns a name as it is written in a path.
func escapePathName(name string) string {
	return strings.NewReplacer(`\`, `\\`, ".", `\.`).Replace(name)
}

// selection is a path of the setting `select`, below one document.
type selection struct {
	text  string // the path as it is written in the configuration
	names path   // the names of the path, without the document's name
}

// selectionsOf returns the paths that select parts of a document, or nil if the facet selects the
// whole document or none of it.
func (f Facet) selectionsOf(document string) []selection {
	var all []selection
	for _, text := range f.Select {
		p, err := parsePath(text)
		if err != nil || (p[0] != "*" && p[0] != canonicalName(document)) {
			continue
		}
		if len(p) == 1 {
			return nil
		}
		all = append(all, selection{text, p[1:]})
	}
	return all
}

// checkSelected returns an error if none of the paths that select parts of a document finds a value in
// its body. The parameter `kept` is the extracted text. A path with a wildcard at an empty list or
// object counts as found.
func (d compiledDocument) checkSelected(body, kept []byte) error {
	if len(d.selections) == 0 || hasScalar(kept) {
		return nil
	}
	var document any
	parser := json.NewDecoder(bytes.NewReader(body))
	parser.UseNumber() // a number may be too large for a float64
	if err := parser.Decode(&document); err != nil {
		return nil //nolint:nilerr // cannot happen: the body has been extracted
	}
	var firstMiss error
	for _, s := range d.selections {
		err := s.names.find(document, escapePathName(d.name))
		if err == nil {
			return nil
		}
		if firstMiss == nil {
			firstMiss = fmt.Errorf("select %q finds nothing: %w", s.text, err)
		}
	}
	if n := len(d.selections) - 1; n > 0 {
		return fmt.Errorf("%w; the other %d selected paths of the document find nothing either", firstMiss, n)
	}
	return firstMiss
}

// hasScalar reports whether canonical JSON contains a string, a number, a boolean or null as a
// value. The names of members do not count.
func hasScalar(text []byte) bool {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '}', '[', ']', ',', ':':
		case '"':
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if i+1 == len(text) || text[i+1] != ':' {
				return true
			}
		default:
			return true
		}
	}
	return false
}

const maxShownNames, maxShownName = 10, 40

// find returns nil if the path finds a value in v. It also returns nil if a list or object on the path
// is empty, so that a wildcard or an index selects nothing. Otherwise it returns an error. `at` is the
// path of v, which the error contains.
func (p path) find(v any, at string) error {
	if len(p) == 0 {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		if p[0] == "*" {
			return p[1:].findAny(maps.Values(v), len(v), at+".*")
		}
		for name, member := range v {
			if canonicalName(name) == p[0] {
				return p[1:].find(member, at+"."+escapePathName(name))
			}
		}
		return fmt.Errorf("%s has no member %q; it has %s", at, p[0], shownNames(v))
	case []any:
		if p[0] == "*" {
			return p[1:].findAny(slices.Values(v), len(v), at+".*")
		}
		i, err := strconv.Atoi(p[0])
		switch {
		case err != nil || strconv.Itoa(i) != p[0] || i < 0:
			return fmt.Errorf("%s is a list; write * or an index in place of %q", at, p[0])
		case i < len(v):
			return p[1:].find(v[i], at+"."+p[0])
		case len(v) == 0:
			return nil
		}
		return fmt.Errorf("%s has only %d element(s); write * or a smaller index", at, len(v))
	case nil:
		return fmt.Errorf("%s is null", at)
	}
	return errors.New(at + " is neither an object nor a list")
}

// findAny is find for the n elements that a wildcard matches. It returns nil if the path finds a
// value in one of them.
func (p path) findAny(elements func(yield func(any) bool), n int, at string) (err error) {
	if n == 0 {
		return nil
	}
	for v := range elements {
		if err = p.find(v, at); err == nil {
			return nil
		}
	}
	return err
}

func shownNames(members map[string]any) string {
	if len(members) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(members))
	more := ""
	if n := len(names) - maxShownNames; n > 0 {
		names, more = names[:maxShownNames], fmt.Sprintf(" and %d more", n)
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%.*q", maxShownName, name)
	}
	return strings.Join(names, ", ") + more
}
