package items

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// PageRequest is the page of a collection that a plan fetches. The zero value is the first page of the
// whole list.
type PageRequest struct {
	Number   int    // number of the page, from 1; 0 also means 1
	Position string // Page.Next of the previous page; empty means the first page
	Since    string // value of the query parameter cursor.param; empty means the whole list; ignored after the first page
}

// Page is a fetched page of a collection.
type Page struct {
	Items []Item
	// Next is the position of the next page; empty means that this page is the last one. It is the URI
	// of a request, or the value of a GraphQL variable as JSON. It does not contain the credential.
	Next string
	// Date is the time of the response by the upstream's clock; zero means unknown.
	Date time.Time
	// ExtractVersion is the number of the facet's settings (Facet.ExtractVersion) with which the items
	// were extracted.
	ExtractVersion int64

	// Document is the name of the facet's document.
	Document string
}

// Content returns the items as content of a facet that is no collection: one JSON object with the list
// of the document. `hashed` is the same content without the values that the setting `ignore` names; it
// is complete only for a plan with OnePage.
func (p *Page) Content() (content, hashed []byte) {
	content = append(append(append(content, `{"`...), p.Document...), `":[`...)
	hashed = slices.Clone(content)
	for n, i := range p.Items {
		if n > 0 {
			content, hashed = append(content, ','), append(hashed, ',')
		}
		content, hashed = append(content, i.Content...), append(hashed, i.Hashed...)
	}
	return append(content, "]}"...), append(hashed, "]}"...)
}

// Bytes returns how many bytes of memory the contents of the items use.
func (p *Page) Bytes() (n int) {
	for _, i := range p.Items {
		n += len(i.Content)
	}
	return n
}

// Item is one element of the list that a page contains.
type Item struct {
	ID      string
	Content []byte            // the selected values as canonical JSON
	Hash    [sha256.Size]byte // SHA-256 of Content without the values that the setting `ignore` names
	// Cursor is the value of the field that cursor.field names: a time of RFC 3339 in UTC, or a whole
	// number; empty means that the item has no value.
	Cursor  string
	Deleted bool // the member that the setting deletedFlag names is true

	Hashed []byte // Content without the values that the setting `ignore` names; set only for a plan with OnePage
}

// MaxIDBytes is the maximum length of an item's id, in bytes of UTF-8.
const MaxIDBytes = 256

// IDOf returns the id of an element of a list. The text of its error begins with a verb, so the caller
// must put the name of the item before it.
func (c *Collection) IDOf(element gjson.Result) (string, error) {
	value, path := element.Get(c.ID), c.ID
	id := ""
	switch value.Type {
	case gjson.String:
		id = value.Str
	case gjson.Number:
		id = value.Raw
	case gjson.Null, gjson.False, gjson.True, gjson.JSON:
		return "", fmt.Errorf("has no id: %s must be a string or a number", path)
	}
	switch {
	case id == "":
		return "", fmt.Errorf("has an empty id at %s", path)
	case len(id) > MaxIDBytes:
		return "", fmt.Errorf("has an id of %d bytes at %s; at most %d are allowed", len(id), path, MaxIDBytes)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return "", fmt.Errorf("has an id at %s with control characters or invalid UTF-8", path)
	}
	return id, nil
}

// CursorOf returns the value for Item.Cursor. The text of its error begins with a verb, as in IDOf.
func (c *Collection) CursorOf(element gjson.Result) (string, error) {
	if c.Cursor == nil {
		return "", nil
	}
	path := c.Cursor.Field
	value := element.Get(path)
	text := value.Str
	switch value.Type {
	case gjson.Null:
		return "", nil
	case gjson.Number:
		text = value.Raw
	case gjson.String:
	case gjson.False, gjson.True, gjson.JSON:
		text = value.Raw
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC().Format(time.RFC3339Nano), nil
	}
	const maxDigits = 40
	digits := strings.TrimPrefix(text, "-")
	if len(digits) > maxDigits {
		return "", fmt.Errorf("has a number of %d digits at %s; at most %d are allowed", len(digits), path, maxDigits)
	}
	if n, ok := new(big.Int).SetString(text, 10); ok {
		return n.String(), nil
	}
	return "", fmt.Errorf("has the value %.40q at %s, which is neither a time (RFC 3339) nor a whole number", text, path)
}
