package guess

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/freshet/freshet/source"
)

// list is the list of items in a response body.
type list struct {
	path  string // gjson path of the list; empty means that the body itself is the list
	items []any
}

// listNames are the usual names of the member with the list, the most usual first.
var listNames = []string{"data", "items", "results", "records", "entries", "list", "rows", "values", "docs", "hits", "content", "elements", "objects", "value"}

// plainMember matches a member's name that needs no escapes in a gjson path.
var plainMember = regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`)

func decodeBody(body []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return v, d.Decode(&v) == nil
}

// findList returns the list of items in a response body. The list is the body itself, a member of the
// body, or a member of an object in the body.
func findList(body any) (list, bool) {
	switch body := body.(type) {
	case []any:
		return list{"", body}, true
	case map[string]any:
		names := slices.Sorted(maps.Keys(body))
		slices.SortStableFunc(names, func(a, b string) int { return rankOf(a) - rankOf(b) })
		for _, name := range names {
			if items, is := body[name].([]any); is && plainMember.MatchString(name) && (rankOf(name) < len(listNames) || hasObjects(items)) {
				return list{name, items}, true
			}
		}
		for _, name := range names {
			inner, is := body[name].(map[string]any)
			if !is || !plainMember.MatchString(name) || rankOf(name) == len(listNames) {
				continue
			}
			for _, below := range slices.Sorted(maps.Keys(inner)) {
				if items, is := inner[below].([]any); is && plainMember.MatchString(below) && hasObjects(items) {
					return list{name + "." + below, items}, true
				}
			}
		}
	}
	return list{}, false
}

func rankOf(name string) int {
	if i := slices.Index(listNames, strings.ToLower(name)); i >= 0 {
		return i
	}
	return len(listNames)
}

func hasObjects(items []any) bool {
	if len(items) == 0 {
		return false
	}
	_, is := items[0].(map[string]any)
	return is
}

// exampleID returns the id of the first item that has one.
func (l list) exampleID() string {
	for _, item := range l.items[:min(len(l.items), 10)] {
		object, is := item.(map[string]any)
		if !is {
			continue
		}
		for _, name := range []string{"id", "uuid", "key", "slug", "code", "name"} {
			switch v := object[name].(type) {
			case json.Number:
				return v.String()
			case string:
				if isKey(v) && !strings.ContainsAny(v, "/?#% ") && !looksRandom(v) || uuid.MatchString(v) {
					return v
				}
			}
		}
	}
	return ""
}

// cursorParams maps the name of a member with the next page's cursor to the query parameter that
// sends the cursor. The names are in lower case and without separators.
var cursorParams = map[string]string{
	"nextcursor": "cursor", "nextpagetoken": "page_token", "nextpage": "page", "nextoffset": "offset", "nexttoken": "next_token",
	"continuationtoken": "continuation_token", "continuation": "continuation", "endcursor": "after", "after": "after", "scrollid": "scroll_id", "cursor": "cursor", "next": "cursor",
}

// nextPage returns the setting `paging` for a response body with a cursor. `url` is true if the body
// contains the URL of the next page. The setting `paging` cannot follow such a URL.
func nextPage(body any) (paging *source.Paging, url bool) {
	type place struct {
		path string
		v    any
	}
	places := []place{{"", body}}
	for range 3 {
		var below []place
		for _, p := range places {
			object, is := p.v.(map[string]any)
			if !is {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(object)) {
				if !plainMember.MatchString(name) {
					continue
				}
				path := strings.TrimPrefix(p.path+"."+name, ".")
				below = append(below, place{path, object[name]})
				param := cursorParams[strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))]
				text, isText := object[name].(string)
				_, isNumber := object[name].(json.Number)
				isURL := strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://") || strings.HasPrefix(text, "/")
				switch {
				case param == "" || !isNumber && text == "":
				case isText && isURL:
					url = true
				case isNumber && param != "page" && param != "offset" && param != "cursor":
				case name == "cursor" && isNumber:
				default:
					if name == "next" && isNumber {
						param = "page"
					}
					if strings.ContainsFunc(name, func(r rune) bool { return r >= 'A' && r <= 'Z' }) {
						param = camelCase(param)
					}
					return &source.Paging{Cursor: path, Param: param}, false
				}
			}
		}
		places = below
	}
	return nil, url
}

// camelCase returns pageToken for page_token.
func camelCase(name string) string {
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}
