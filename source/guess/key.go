package guess

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// id is one id of a URL. It is a path segment without its extension, or the value of a query parameter.
type id struct {
	segment, param int    // index of the path segment, or of the query parameter, that has the id; the other index is -1
	name           string // name of its placeholder, if the URL has several ids
	value          string
}

// findKey replaces the ids of the URL by placeholders. One id becomes {key}. Several ids become the
// named groups of a key whose parts are separated by slashes, such as OWNER/REPO.
func (a *address) findKey(segments []string, query []parameter) error {
	plain := make([]string, len(segments))
	var ids []id
	var indexes []int // indexes of the path segments with an id
	for i, segment := range segments {
		plain[i], _ = url.PathUnescape(segment)
		if value := extension.ReplaceAllString(plain[i], "$1"); isKey(value) && isPathID(plain, i, value) {
			ids, indexes = append(ids, id{segment: i, param: -1, value: value}), append(indexes, i)
		}
	}
	if len(ids) > 1 && ids[0].segment == 0 && shortNumber.MatchString(ids[0].value) {
		ids, indexes = ids[1:], indexes[1:] // remove the first id, which is a version of the API as in /3/movies/550
	}
	chosen := chooseParam(query, len(ids) > 0)
	for i, p := range query {
		if i == chosen || isKey(p.value) && isStrongID(p.value) && !isOption(p.name) {
			ids = append(ids, id{segment: -1, param: i, value: p.value})
		}
	}
	at := -1
	if chosen < 0 && len(indexes) > 0 {
		at = indexes[len(indexes)-1]
	}
	a.facet = facetName(plain, at, indexes, query, chosen)
	nameIDs(ids, plain, query)
	a.fill(segments, plain, query, ids)
	return a.setPattern(ids)
}

// chooseParam returns the index of the query parameter that identifies the entity, or -1. It chooses
// the last parameter whose name is that of an id. If there is none and the path has no id, it chooses
// the last parameter whose value is certainly an id. If there is none either, it chooses the last
// parameter whose value can be an id.
func chooseParam(query []parameter, pathHasID bool) int {
	canBe := func(p parameter) bool { return isKey(p.value) && !isOption(p.name) }
	for i, p := range slices.Backward(query) {
		if canBe(p) && isIDName(p.name) {
			return i
		}
	}
	if pathHasID {
		return -1
	}
	for _, strong := range []bool{true, false} {
		for i, p := range slices.Backward(query) {
			if canBe(p) && (isStrongID(p.value) || !strong) {
				return i
			}
		}
	}
	return -1
}

// nameIDs gives each id the name of its placeholder. A single id has the name key. Of several ids, an id
// in the path is named after the segment before it, in the singular: user for users/42. An id in the
// query has the name of its parameter.
func nameIDs(ids []id, plain []string, query []parameter) {
	if len(ids) == 1 {
		ids[0].name = "key"
		return
	}
	isID := func(segment int) bool {
		return slices.ContainsFunc(ids, func(d id) bool { return d.segment == segment })
	}
	for i := range ids {
		name, before := "", ids[i].segment-1
		switch {
		case ids[i].param >= 0:
			name = cleanName(query[ids[i].param].name)
		case before >= 0 && isRepositories(plain[before]):
			name = "owner"
		case before >= 1 && isRepositories(plain[before-1]):
			name = "repo"
		case before >= 0 && !isID(before) && !version.MatchString(plain[before]):
			name = cleanName(singular(plain[before]))
		}
		if name == "" || name == "key" { // a group must not have the name key
			name = "id"
		}
		ids[i].name = unique(name, func(name string) bool {
			return slices.ContainsFunc(ids[:i], func(d id) bool { return d.name == name })
		})
	}
	for i := range ids {
		ids[i].name = strings.ReplaceAll(ids[i].name, "-", "_") // a group's name has no hyphen
	}
}

// fill sets the URL that is called and the template, in which placeholders replace the ids.
func (a *address) fill(segments, plain []string, query []parameter, ids []id) {
	var template, literal strings.Builder
	for i, segment := range segments {
		literal.WriteString("/" + segment)
		if at := slices.IndexFunc(ids, func(d id) bool { return d.segment == i }); at >= 0 {
			segment = "{" + ids[at].name + "}" + strings.TrimPrefix(plain[i], ids[at].value)
		}
		template.WriteString("/" + segment)
	}
	separator := "?"
	for i, p := range query {
		name, value := separator+escapeQuery(p.name)+"=", escapeQuery(p.value)
		literal.WriteString(name + value)
		if at := slices.IndexFunc(ids, func(d id) bool { return d.param == i }); at >= 0 {
			value = "{" + ids[at].name + "}"
		}
		template.WriteString(name + value)
		separator = "&"
	}
	a.template, a.literal = template.String(), literal.String()
}

// setPattern sets the example key and the keyPattern. It returns an error if the key is too long, or
// if the pattern divides the key into other parts than the ids.
func (a *address) setPattern(ids []id) error {
	if len(ids) == 0 {
		return nil
	}
	if len(ids) == 1 {
		a.key, a.pattern = ids[0].value, keyPattern(ids[0].value)
		return nil
	}
	var values, patterns []string
	for _, d := range ids {
		pattern := keyPattern(d.value)
		if pattern == anyKey && !strings.Contains(d.value, "/") {
			pattern = "[^/]{1,200}"
		}
		values, patterns = append(values, d.value), append(patterns, "(?P<"+d.name+">"+pattern+")")
		a.groups = append(a.groups, d.name)
	}
	a.key, a.pattern = strings.Join(values, "/"), strings.Join(patterns, "/")
	if err := schemas.CheckKey(a.key); err != nil {
		return fmt.Errorf("the ids in the example form no valid key: %w; write an example with shorter ids", err)
	}
	expr, err := regexp.Compile("^(?:" + a.pattern + ")$")
	if err != nil || !slices.Equal(expr.FindStringSubmatch(a.key), append([]string{a.key}, values...)) {
		return errors.New("its ids contain slashes, so a key cannot be divided into them; write an example whose ids have no slash")
	}
	return nil
}

// extension matches a path segment that ends with the extension of a format, such as 42.json.
var extension = regexp.MustCompile(`^(.+)(\.(json|xml|php|aspx?))$`)

// optionNames are query parameters that choose the format or a part of the response, not an entity.
var optionNames = []string{
	"page", "per_page", "perpage", "page_size", "pagesize", "limit", "offset", "size", "count", "start", "skip", "top", "sort", "order", "order_by", "direction", "fields", "format",
	"lang", "language", "locale", "include", "expand", "embed", "cursor", "after", "before", "since", "until", "version", "v", "api-version", "api_version", "units", "type", "status", "state", "callback", "pretty", "output", "from", "to",
}

// isIDName reports whether a query parameter of that name identifies an entity.
func isIDName(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasSuffix(lower, "id") || slices.Contains([]string{"key", "slug", "code", "symbol", "name", "username", "user", "login", "email", "uuid", "guid", "isbn", "sku", "q", "query"}, lower)
}

// isOption reports whether a query parameter chooses the format or a part of the response.
func isOption(name string) bool { return slices.Contains(optionNames, strings.ToLower(name)) }

// isRepositories reports whether a path segment is followed by OWNER/NAME, as in repos/OWNER/NAME.
func isRepositories(segment string) bool {
	return slices.Contains([]string{"repos", "repositories"}, strings.ToLower(segment))
}

// escapeQuery percent-encodes a text for a query.
func escapeQuery(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// isPathID reports whether segment i of a path is an id. The parameter id is the text of the segment
// without an extension such as .json.
func isPathID(segments []string, i int, id string) bool {
	before := ""
	if i > 0 {
		before = segments[i-1]
	}
	last := i == len(segments)-1 || i == len(segments)-2 && segments[i+1] == ""
	switch {
	case isStrongID(id):
		return !strings.EqualFold(before, "api") && !strings.EqualFold(before, "rest")
	case slices.Contains(fixedWords, strings.ToLower(id)):
		return false
	case i > 1 && isRepositories(segments[i-2]):
		return true
	case isPlural(before):
		return last || !isPlural(id) && !version.MatchString(id)
	}
	return last && i > 0 && date.MatchString(id)
}
