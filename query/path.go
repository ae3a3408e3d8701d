package query

import (
	"net/http"
	"net/url"
	"strings"
)

// escapePath makes the router match the escaped path, in which the key is one segment. pathParam
// unescapes each segment once.
func escapePath(r *http.Request, sources map[string]Source) {
	if r.URL.RawPath == "" {
		r.URL.RawPath = r.URL.EscapedPath()
	}
	r.URL.RawPath = escapeKeySlashes(r.URL.RawPath, func(source, facet string) bool { return isCollection(sources, source, facet) })
}

// escapeKeySlashes escapes the slashes of a key, so that a client may send them unescaped. In the
// path /v1/{source}/{facet}/{rest} the rest is the key. If it has more than one part and the last
// part is "events" or "refresh", this part is the action, and the parts before it are the key. The
// HTTP method does not matter. A client that needs a key which ends with /events or /refresh must
// escape that slash. For a collection, a last part "items" is an action too, and so are the last two
// parts "items" and the id of an item.
//
// A path with an empty part, such as a//b, is returned unchanged and matches no route. A key can't
// have an empty part, because some proxies replace several slashes by one.
func escapeKeySlashes(path string, collection func(source, facet string) bool) string {
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		return path
	}
	source, rest, _ := strings.Cut(rest, "/")
	facet, rest, _ := strings.Cut(rest, "/")
	last := strings.LastIndexByte(rest, '/')
	if last < 0 || last == len(rest)-1 || rest[0] == '/' || strings.Contains(rest, "//") {
		return path
	}
	key, action := rest, ""
	// The last part is compared unescaped, because clients and proxies may escape and unescape
	// letters (RFC 3986 §6.2.2.2).
	if name, err := url.PathUnescape(rest[last+1:]); err == nil && (name == "events" || name == "refresh") {
		key, action = rest[:last], "/"+name
	} else if collection(source, facet) {
		if at := itemsPart(rest); at > 0 {
			key, action = rest[:at], rest[at:]
		}
	}
	return path[:len(path)-len(rest)] + strings.ReplaceAll(key, "/", "%2F") + action
}

// itemsPart returns the index in rest at which "/items" or "/items/ID" begins. `rest` is the part of a
// path after the facet. It returns 0 if rest does not end in this way.
func itemsPart(rest string) int {
	last := strings.LastIndexByte(rest, '/')
	if rest[last+1:] == "items" {
		return last
	}
	if at := strings.LastIndexByte(rest[:last], '/'); at > 0 && rest[at+1:last] == "items" {
		return at
	}
	return 0
}
