package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/source/items"
)

// maxItemPages is the maximum of the setting `paging.maxPages` for a collection. `defaultItemPages` is
// its default.
const defaultItemPages, maxItemPages = 1000, 100_000

// checkCollection returns an error if a setting of the facet is invalid because the facet is a
// collection.
func (f Facet) checkCollection() error {
	c := f.Collection
	if c == nil {
		return nil
	}
	fromAlias := slices.ContainsFunc(compileAliases(f.Params), func(a Alias) bool { return a.From != "" })
	switch {
	case len(f.Documents) != 1:
		return fmt.Errorf("collection: needs a facet of exactly one document; this one has %d", len(f.Documents))
	case f.Raw != nil:
		return errors.New("collection: not allowed with raw, because raw content has no items")
	case f.Immutable:
		return errors.New("collection: not allowed with immutable, because lists change")
	case fromAlias:
		return errors.New("collection: params with from are not supported; give the params a text")
	}
	if err := c.Check(f.ShrinkGuard > 0, f.Conditional); err != nil {
		return fmt.Errorf("collection.%w", err)
	}
	for _, d := range f.Documents {
		switch {
		case c.Cursor == nil || c.Cursor.Param == "":
		case d.GraphQL != nil:
			return errors.New("collection.cursor.param: not allowed for a graphql query; write order: desc and no param")
		case d.Paging != nil && d.Paging.Param == c.Cursor.Param:
			return errors.New("collection.cursor.param: is the same as paging.param; the two values need different query parameters")
		}
	}
	return nil
}

// checkPages returns an error if the setting `paging.maxPages` of a collection is out of range.
func (f Facet) checkPages(p *Paging) error {
	most := maxPageLimit
	if f.Collection != nil {
		most = maxItemPages
	}
	if p != nil && (p.MaxPages < 0 || p.MaxPages > most) {
		return fmt.Errorf("paging.maxPages: %d must be from 1 to %d", p.MaxPages, most)
	}
	return nil
}

// setPage changes the request so that it fetches the given page of a collection.
func (r *documentRequest) setPage(f *compiledFacet, page items.PageRequest) error {
	r.number = max(page.Number, 1)
	cursor := f.Collection.Cursor
	switch {
	case page.Position == "":
		if page.Since != "" && cursor != nil && cursor.Param != "" {
			to := *r.url
			to.RawQuery = replaceParameter(to.RawQuery, cursor.Param, page.Since)
			r.url = &to
		}
		return nil
	case r.bodyAt != nil:
		r.body = r.bodyAt(page.Position)
		r.position = page.Position
		return nil
	}
	uri, err := url.ParseRequestURI(page.Position)
	if err != nil || uri.Host != "" {
		return errors.New("the stored position of the next page is not valid; delete the snapshot to begin again")
	}
	to := *r.url
	to.Path, to.RawPath, to.RawQuery = uri.Path, uri.RawPath, uri.RawQuery
	if !isBelow(&to, r.base) {
		return errors.New("the stored position of the next page is outside of baseURL; delete the snapshot to begin again")
	}
	r.url = &to
	return nil
}

// pageLimit returns the maximum number of pages of the document.
func (r documentRequest) pageLimit() int {
	if r.paging.MaxPages > 0 {
		return r.paging.MaxPages
	}
	return defaultItemPages
}

// fetchNext is called after the fetch of a page of a collection. It stores the position of the next
// page in the response.
func (r documentRequest) fetchNext(s caller, resp *response) {
	if r.paging == nil {
		return
	}
	seen := map[string]bool{}
	if r.paging.Link {
		seen[r.url.RequestURI()] = true
	}
	if r.position != "" {
		seen[cursorText(r.position)] = true
	}
	next, err := s.nextPage(r, *resp, seen)
	switch {
	case err != nil:
		resp.linkErr = err
	case next == nil:
	case r.number >= r.pageLimit():
		resp.linkErr = fmt.Errorf("there are more than %d pages; increase the document's paging.maxPages", r.number)
	case next.bodyAt != nil:
		resp.position = next.position
	default:
		resp.next, resp.position = next.url, next.url.RequestURI()
	}
	if s.credentials.containsCredential([]byte(resp.position)) {
		resp.position, resp.linkErr = "", errors.New("the link or cursor to the next page contains the credential, which must not be stored")
	}
	if len(resp.position) > maxTargetBytes {
		resp.position, resp.linkErr = "", errors.New("the link or cursor to the next page is longer than 8 KiB")
	}
}

// cursorText returns the text of a cursor. `position` is the cursor as JSON.
func cursorText(position string) string {
	var text string
	if json.Unmarshal([]byte(position), &text) != nil {
		return position
	}
	return text
}

// readItems classifies the response with a page of a collection, and extracts the page's items.
func (r responseReader) readItems(p *Plan) Outcome {
	o := r.classify(p.validator != Validator{})
	page := &items.Page{Next: r.response.position, ExtractVersion: p.facet.version, Document: canonicalName(p.facet.documents[0].name)}
	if date, err := http.ParseTime(r.response.header.Get("Date")); err == nil {
		page.Date = date
	}
	switch {
	case o.Class == NotModified:
		o.Page = page
		return o
	case o.Class != OK:
		return o
	case r.response.linkErr != nil:
		return r.failure(classification{class: BadContent}, r.response.linkErr)
	}
	path := ""
	if p.requests[0].paging != nil {
		path = p.requests[0].paging.Items
	}
	list, err := pageListText(r.w.plain.Bytes(), path)
	if err != nil {
		return r.badContent(err)
	}
	node := p.facet.paths.member([]byte(canonicalName(p.facet.documents[0].name))).other
	err = forEachElement(&r.w.canonical, list, node, func(text []byte) error {
		item, err := r.readItem(p, node, text)
		if err != nil {
			return fmt.Errorf("item %d of the page: %w", len(page.Items)+1, err)
		}
		page.Items = append(page.Items, item)
		return nil
	})
	if err != nil {
		return r.badContent(err)
	}
	o.Page, o.Redacted = page, r.w.redacted
	o.Validator = Validator{ETag: r.s.credentials.storableValidator(r.response.header.Get("Etag"))}
	return o
}

// readItem extracts one item from the text of an element of the page's list. The canonical form of the
// element is in r.w.canonical.
func (r responseReader) readItem(p *Plan, node *pathNode, text []byte) (item items.Item, err error) {
	c := p.facet.Collection
	element := gjson.ParseBytes(text)
	if !element.IsObject() {
		return item, errors.New("is not an object")
	}
	if item.ID, err = c.IDOf(element); err != nil {
		return item, err
	}
	if item.Cursor, err = c.CursorOf(element); err != nil {
		return item, err
	}
	item.Deleted = c.DeletedFlag != "" && element.Get(c.DeletedFlag).Bool()
	canon := &r.w.canonical
	if r.s.credentials.containsCredential(canon.out) {
		redacted, n := r.s.credentials.redactJSON(canon.out)
		r.w.redacted += n
		canon.reset()
		if err := canon.appendDocument(redacted, node); err != nil {
			return item, err
		}
	}
	item.Content = slices.Clone(canon.out)
	r.w.hash.Reset()
	canon.forEachHashedPart(func(part []byte) {
		r.w.hash.Write(part)
		if p.onePage {
			item.Hashed = append(item.Hashed, part...)
		}
	})
	r.w.hash.Sum(item.Hash[:0])
	return item, nil
}

// forEachElement validates the document "in", which must be an array, and calls f with the text of each of
// its elements. During the call, c.out is the canonical form of the element. f may use c for another document.
func forEachElement(c *canonical, in []byte, paths *pathNode, f func(text []byte) error) error {
	c.in, c.at = in, 0
	c.space()
	c.at++ // the bracket
	for n := 0; ; n++ {
		c.space()
		if n == 0 && c.at < len(in) && in[c.at] == ']' {
			break
		}
		c.reset()
		from := c.at
		if err := c.value(paths, 1); err != nil {
			return err
		}
		to := c.at
		if err := f(in[from:to]); err != nil {
			return err
		}
		c.in, c.at = in, to
		c.space()
		if c.at < len(in) && in[c.at] == ']' {
			break
		}
		if c.at >= len(in) || in[c.at] != ',' {
			return c.fail("array is not closed")
		}
		c.at++
	}
	c.at++
	return checkEnd(c)
}
