package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/source/announced"
)

// fetchDocument fetches all pages of one document, each with its own permit. An error means
// that the request for one of the pages was not sent.
func (s caller) fetchDocument(ctx context.Context, r documentRequest) (first response, calls int, err error) {
	first, r, calls, err = s.callFollowingRedirect(ctx, r, int64(s.config.MaxBody))
	if s.plan.facet.Collection != nil && err == nil {
		r.fetchNext(s, &first)
	}
	if r.paging == nil || err != nil || s.plan.facet.Collection != nil {
		return first, calls, err
	}
	seen := map[string]bool{}
	if r.paging.Link {
		seen[r.url.RequestURI()] = true
	}
	last := &first
	for n := 1; ; n++ {
		next, linkErr := s.nextPage(r, *last, seen)
		if next != nil && s.plan.onePage {
			first.next = next.url
			return first, calls, nil
		}
		if next != nil && n == r.paging.PageLimit() {
			next, linkErr = nil, fmt.Errorf("there are more than %d pages; request fewer items or increase the document's paging.maxPages", n)
		}
		if next == nil {
			if linkErr != nil {
				last.linkErr = linkErr
			}
			return first, calls, nil
		}
		resp, lastRequest, sent, err := s.callFollowingRedirect(ctx, *next, int64(s.config.MaxBody)-int64(first.bytes()))
		calls += sent
		if err != nil {
			return response{}, calls, err
		}
		first.more = append(first.more, resp)
		last, r = &first.more[len(first.more)-1], lastRequest
	}
}

// nextPage returns the request for the page that follows the response `page`. It returns nil if there
// is no next page, or if Read will reject the response. An error means that there is a next page but
// it cannot be requested.
func (s caller) nextPage(r documentRequest, page response, seen map[string]bool) (*documentRequest, error) {
	if page.err != nil || page.status != http.StatusOK {
		return nil, nil //nolint:nilnil // no next page
	}
	w := workspaces.Get().(*workspace)
	defer w.free()
	w.plain.Reset()
	if err := w.decompress(page, int64(s.config.MaxBody)); err != nil || s.rules.classify(page.status, page.header, w.plain.Bytes()).class != OK {
		return nil, nil //nolint:nilnil // Read classifies the page
	}
	if _, err := pageItems(w.plain.Bytes(), r.paging.Items); err != nil {
		return nil, nil //nolint:nilnil // Read classifies the page
	}
	var to string
	var err error
	if r.paging.Link {
		to, err = s.nextByLink(&r, page)
	} else {
		to, err = r.nextByCursor(w.plain.Bytes())
	}
	switch {
	case err != nil:
		return nil, err
	case to == "":
		return nil, nil //nolint:nilnil // the last page
	case seen[to]:
		return nil, errors.New("the link or cursor to the next page repeats an earlier one")
	}
	seen[to] = true
	return &r, nil
}

// nextByLink sets the request's URL to the target of the Link header. It returns a string that
// identifies the page, or "" if there is no next page.
func (s caller) nextByLink(r *documentRequest, page response) (string, error) {
	link, err := nextLink(strings.Join(page.header.Values("Link"), ","))
	if err != nil || link == "" {
		return "", err
	}
	to, err := s.resolveLink(*r, link)
	if err != nil {
		return "", fmt.Errorf("the link to the next page %w", err)
	}
	r.url = to
	return to.RequestURI(), nil
}

// nextByCursor adds the cursor from a page's body to the request. It returns the cursor, or ""
// if there is no next page.
func (r *documentRequest) nextByCursor(body []byte) (string, error) {
	path := r.paging.Cursor
	// The last page of a GraphQL connection has a cursor too, so hasNextPage decides.
	if prefix, found := strings.CutSuffix(path, "endCursor"); found && gjson.GetBytes(body, prefix+"hasNextPage").Type == gjson.False {
		return "", nil
	}
	cursor := gjson.GetBytes(body, path)
	switch cursor.Type {
	case gjson.Null, gjson.False:
		return "", nil
	case gjson.String:
	case gjson.Number:
		cursor.Str = cursor.Raw
	case gjson.True, gjson.JSON:
		return "", fmt.Errorf("%s is not a cursor, which must be a string or a number", path)
	}
	if cursor.Str == "" {
		return "", nil
	}
	if r.bodyAt != nil {
		text := []byte(cursor.Raw)
		if cursor.Type == gjson.String {
			text, _ = json.Marshal(cursor.Str) // cannot fail: json.Marshal encodes every string
		}
		r.position = string(text)
		r.body = r.bodyAt(r.position)
		return cursor.Str, nil
	}
	to := *r.url
	if to.RawQuery = replaceParameter(to.RawQuery, r.paging.Param, cursor.Str); len(to.RequestURI()) > maxTargetBytes {
		return "", errors.New("with the cursor the path is longer than 8 KiB")
	}
	r.url = &to
	return cursor.Str, nil
}

// pageItems returns the text between the brackets of a page's list.
func pageItems(body []byte, path string) ([]byte, error) {
	list, err := pageList(body, path)
	if err != nil {
		return nil, err
	}
	raw := strings.TrimSpace(list.Raw)
	return bytes.TrimSpace([]byte(raw[1 : len(raw)-1])), nil
}

// pageList returns a page's list.
func pageList(body []byte, path string) (list gjson.Result, err error) {
	if err := checkJSON(body); err != nil {
		return list, err
	}
	list = gjson.ParseBytes(body)
	if path != "" {
		list = list.Get(path)
	}
	if !list.IsArray() {
		if path == "" {
			return list, errors.New("the page is not a list; write the path of its list in paging.items")
		}
		return list, fmt.Errorf("the page has no list at %s", path)
	}
	return list, nil
}

// pageListText returns the text of a page's list. If the list is the whole body, its content is not
// validated.
func pageListText(body []byte, path string) ([]byte, error) {
	if path == "" && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		return body, nil
	}
	list, err := pageList(body, path)
	return []byte(list.Raw), err
}

// nextLink returns the target of the first link with the relation "next" (RFC 8288 §3), or "".
// An invalid header is an error, because a missed page would make the content incomplete.
func nextLink(header string) (string, error) {
	links, ok := splitLinks(header)
	if !ok {
		return "", errors.New("the Link header is invalid")
	}
	for _, link := range links {
		target, rest, found := strings.Cut(strings.TrimPrefix(link, "<"), ">")
		if !found {
			return "", errors.New("the Link header is invalid")
		}
		parameters, _ := announced.SplitOutsideQuotes(rest, ';')
		relation, anchored := "", false
		for _, parameter := range parameters[1:] {
			name, value, _ := strings.Cut(parameter, "=")
			switch value = strings.Trim(strings.TrimSpace(value), `"`); strings.ToLower(strings.TrimSpace(name)) {
			case "rel":
				if relation == "" { // the first rel parameter counts (RFC 8288 §3.3)
					relation = strings.ToLower(value)
				}
			case "anchor": // the link belongs to the page named by anchor, not to the fetched page
				anchored = true
			}
		}
		for rel := range strings.FieldsSeq(relation) {
			if rel == "next" && !anchored && target == "" {
				return "", errors.New("the Link header has an empty target")
			}
			if rel == "next" && !anchored {
				return target, nil
			}
		}
	}
	return "", nil
}

// splitLinks splits a Link header at commas outside of targets and quoted strings.
func splitLinks(header string) (links []string, ok bool) {
	for rest := strings.Trim(header, " \t,"); rest != ""; rest = strings.Trim(rest, " \t,") {
		end := strings.IndexByte(rest, '>')
		if rest[0] != '<' || end < 0 {
			return nil, false
		}
		for quoted := false; end < len(rest) && (quoted || rest[end] != ','); end++ {
			switch {
			case quoted && rest[end] == '\\':
				end++
			case rest[end] == '"':
				quoted = !quoted
			}
		}
		if end = min(end, len(rest)); strings.Count(rest[:end], `"`) == 1 {
			return nil, false
		}
		links = append(links, rest[:end])
		rest = rest[end:]
	}
	return links, true
}
