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

// fetchDocument fetches one document with all its pages, a permit each. An error means that
// a request which was needed was not sent.
func (s *Source) fetchDocument(ctx context.Context, p *Plan, r documentRequest, permits Permits) (first response, calls int, err error) {
	first, r, calls, err = s.callFollowingRedirect(ctx, p, r, int64(s.config.MaxBody), permits)
	if r.paging == nil || err != nil {
		return first, calls, err
	}
	seen := map[string]bool{}
	if r.paging.Link {
		seen[r.url.RequestURI()] = true
	}
	last := &first
	for n := 1; ; n++ {
		next, astray := s.nextPage(r, *last, seen)
		if next != nil && n == r.paging.PageLimit() {
			next, astray = nil, fmt.Errorf("there are more than %d pages; narrow what is asked for, or raise the document's paging.maxPages", n)
		}
		if next == nil {
			if astray != nil {
				last.linkErr = astray
			}
			return first, calls, nil
		}
		one, at, sent, err := s.callFollowingRedirect(ctx, p, *next, int64(s.config.MaxBody)-int64(first.bytes()), permits)
		calls += sent
		if err != nil {
			return response{}, calls, err
		}
		first.more = append(first.more, one)
		last, r = &first.more[len(first.more)-1], at
	}
}

// nextPage returns what to ask for after a page; nil: it is the last one, or one that will
// be read as no content. An error means that there is a next page and no way to it.
func (s *Source) nextPage(r documentRequest, page response, seen map[string]bool) (*documentRequest, error) {
	if page.err != nil || page.status != http.StatusOK {
		return nil, nil //nolint:nilnil // nothing follows
	}
	w := workspaces.Get().(*workspace)
	defer w.free()
	w.plain.Reset()
	if err := s.decompress(w, page); err != nil || s.classify(page.status, page.header, w.plain.Bytes()).class != OK {
		return nil, nil //nolint:nilnil // the reading says what it is
	}
	if _, err := pageItems(w.plain.Bytes(), r.paging.Items); err != nil {
		return nil, nil //nolint:nilnil // likewise
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
		return nil, errors.New("the page names one as the next that was there before")
	}
	seen[to] = true
	return &r, nil
}

// nextByLink points the request to where the answer's link leads, and returns what tells
// that page from others; empty: there is none.
func (s *Source) nextByLink(r *documentRequest, page response) (string, error) {
	link, err := nextLink(strings.Join(page.header.Values("Link"), ","))
	if err != nil || link == "" {
		return "", err
	}
	to, err := s.resolveLink(r.url, link)
	if err != nil {
		return "", fmt.Errorf("the link to the next page %w", err)
	}
	r.url = to
	return to.RequestURI(), nil
}

// nextByCursor is the same by the cursor in a page's body.
func (r *documentRequest) nextByCursor(body []byte) (string, error) {
	path := r.paging.Cursor
	// Of a GraphQL connection the last page has a cursor too, and beside it that it is the last.
	if of, is := strings.CutSuffix(path, "endCursor"); is && gjson.GetBytes(body, of+"hasNextPage").Type == gjson.False {
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
		return "", fmt.Errorf("at %s there is no cursor, which is a string or a number", path)
	}
	if cursor.Str == "" {
		return "", nil
	}
	if r.bodyAt != nil {
		text := []byte(cursor.Raw)
		if cursor.Type == gjson.String {
			text, _ = json.Marshal(cursor.Str) // a string has no value that can't be written
		}
		r.body = r.bodyAt(string(text))
		return cursor.Str, nil
	}
	to := *r.url
	if to.RawQuery = replaceParameter(to.RawQuery, r.paging.Param, cursor.Str); len(to.RequestURI()) > maxTargetBytes {
		return "", errors.New("the cursor makes a path of more than 8 KiB")
	}
	r.url = &to
	return cursor.Str, nil
}

// pageItems returns the items of a page as they stand between the brackets of their list.
func pageItems(body []byte, path string) ([]byte, error) {
	if err := checkJSON(body); err != nil {
		return nil, err
	}
	list := gjson.ParseBytes(body)
	if path != "" {
		list = list.Get(path)
	}
	if !list.IsArray() {
		if path == "" {
			return nil, errors.New("the page is no list; say in paging.items where in it the list stands")
		}
		return nil, fmt.Errorf("the page has no list at %s", path)
	}
	raw := strings.TrimSpace(list.Raw)
	return bytes.TrimSpace([]byte(raw[1 : len(raw)-1])), nil
}

// nextLink returns the target of the first link whose relation is next (RFC 8288 §3),
// or nothing. What can't be read is an error: a page that is overlooked would make
// content of a part.
func nextLink(header string) (string, error) {
	links, ok := splitLinks(header)
	if !ok {
		return "", errors.New("the header Link can't be read")
	}
	for _, link := range links {
		target, rest, found := strings.Cut(strings.TrimPrefix(link, "<"), ">")
		if !found {
			return "", errors.New("the header Link can't be read")
		}
		parameters, _ := announced.SplitOutsideQuotes(rest, ';')
		relation, anchored := "", false
		for _, parameter := range parameters[1:] {
			name, value, _ := strings.Cut(parameter, "=")
			switch value = strings.Trim(strings.TrimSpace(value), `"`); strings.ToLower(strings.TrimSpace(name)) {
			case "rel":
				if relation == "" { // of several the first counts
					relation = strings.ToLower(value)
				}
			case "anchor": // then it is no link of this page
				anchored = true
			}
		}
		for one := range strings.FieldsSeq(relation) {
			if one == "next" && !anchored && target == "" {
				return "", errors.New("the header Link leads nowhere")
			}
			if one == "next" && !anchored {
				return target, nil
			}
		}
	}
	return "", nil
}

// splitLinks splits a Link header at the commas that stand in no target and in no
// quoted string.
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
