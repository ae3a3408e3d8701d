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
	Number   int    // number of the page, from 1; 0: 1
	Position string // Page.Next of the page before; empty: the first page
	Since    string // value of the cursor's parameter; empty: the whole list. It has no effect after the first page
}

// Page is a fetched page of a collection.
type Page struct {
	Items []Item
	// Next is the position of the next page; empty: this is the last one. It is the URI of a request, or
	// a value of a GraphQL variable as JSON, and has no credential.
	Next string
	// Date is the upstream's time of the response; zero: unknown.
	Date time.Time
	// ExtractVersion identifies the facet's settings with which the items were extracted.
	ExtractVersion int64

	// Document is the name of the facet's document.
	Document string
}

// Content returns the items in the form of source.Content.Bytes: one JSON object with the list of the document.
// The result hashed is the content without the ignored values. It is complete only for a plan with OnePage.
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

// Bytes returns the memory that the contents of the items use, in bytes.
func (p *Page) Bytes() (n int) {
	for _, i := range p.Items {
		n += len(i.Content)
	}
	return n
}

// Item is one element of a page.
type Item struct {
	ID      string
	Content []byte            // the selected values as canonical JSON
	Hash    [sha256.Size]byte // SHA-256 of Content without the ignored values
	// Cursor is the value of the cursor's field: a time of RFC 3339 in UTC, or a whole number; empty: the
	// item has no value.
	Cursor  string
	Deleted bool // the flag of the item says that it is deleted

	Hashed []byte // Content without the ignored values; only for a plan with OnePage
}

// MaxIDBytes is the length of the longest id of an item, in bytes of UTF-8.
const MaxIDBytes = 256

// IDOf returns the id of an item. The text of its error has no subject: the caller names the item.
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

// CursorOf returns the value of the cursor's field in the form of Item.Cursor. Its error is like the error of
// IDOf.
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
