package collection

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// State is the stored state of a collection. Its zero value is a collection that was never fetched.
type State struct {
	// Version is the version of the fetch that wrote the state last; 0 means that nothing is stored.
	Version int64
	// ExtractVersion is the number of the facet's settings (source.Facet.ExtractVersion) with which the
	// last complete walk extracted its items.
	ExtractVersion int64
	// Visibility is the visibility of the last fetch. Items of another visibility are deleted.
	Visibility string
	Items      int64 // number of stored items, without deleted ones
	// Changed is the version of the fetch that changed an item last; ChangedAt is the start of that fetch.
	Changed   int64
	ChangedAt time.Time
	Cursor    string // position up to which the collection is complete, as doc.go explains; empty means that there is none
	ETag      string // ETag of the first page of the last complete walk
	// CompleteAt is the start of the last complete walk. FullAt is the start of the last complete full
	// walk. Zero means that there was none.
	CompleteAt, FullAt time.Time
	// FullWalk is the id of the last complete full walk of several pages; 0 means that there is none.
	// Digests of the ids of its items are in the table walk_pages.
	FullWalk int64
	Walk     Walk

	reset bool // the stored items have another visibility, so the next write deletes them
}

// Walk is an open walk. Its zero value means that no walk is open.
type Walk struct {
	ID    int64     // version of the walk's first fetch; 0 means that page 1 was not fetched yet
	Began time.Time // start of the walk's first fetch
	// Date is the time of the upstream's clock at the start of the walk.
	Date time.Time
	Page int // number of the next page, from 1; 0 means that no walk is open
	// Position is the position of the next page: the URI of its request, or a value of a GraphQL
	// variable. Empty means page 1.
	Position string
	// Checkpoint is the position of an earlier page of the walk. If a later page has the same position,
	// the walk would never end.
	Checkpoint string
	Full       bool   // the walk requests the whole list
	Greatest   string // greatest cursor value of the walk's items
	ETag       string // ETag of the first page
	// ExtractVersion is the number of the facet's settings (source.Facet.ExtractVersion) with which the
	// walk extracts its items.
	ExtractVersion int64
}

// Open reports whether the walk has stored a page and has not yet stored its last page.
func (w Walk) Open() bool { return w.ID != 0 }

// Name returns the name of the walk's next page. An update request contains this name.
func (w Walk) Name() string { return strconv.FormatInt(w.ID, 10) + "-" + strconv.Itoa(w.Page) }

// Summary is the content of a collection's snapshot.
type Summary struct {
	// AsOf is the start of the last complete walk; nil means that the first walk is not complete.
	AsOf *time.Time `json:"asOf"`
	// ChangedAt is the start of the fetch that changed an item last; nil means that no item was ever
	// stored.
	ChangedAt *time.Time `json:"changedAt"`
	// Complete is true if a walk has reached the last page. It becomes false again if the visibility
	// changes.
	Complete bool `json:"complete"`
	// Count is the number of stored items that are not deleted.
	Count int64 `json:"count"`
}

// summary returns the content of the collection's snapshot, and its hash. The hash depends on the items
// and not on AsOf.
func (s State) summary() ([]byte, store.Hash, error) {
	content, err := json.Marshal(Summary{
		AsOf: schemas.OptionalTime(s.CompleteAt), ChangedAt: schemas.OptionalTime(s.ChangedAt),
		Complete: !s.CompleteAt.IsZero(), Count: s.Items,
	})
	return content, sha256.Sum256(fmt.Appendf(nil, "%d %d %v", s.Items, s.Changed, !s.CompleteAt.IsZero())), err
}

// Item is one element of a collection as it is stored in the database.
type Item struct {
	ID   string
	Hash store.Hash // SHA-256 of the canonical content without ignored values
	// Version is the version of the fetch that changed the item last. It orders the changes of a
	// collection. ChangedAt is the start of that fetch.
	Version   int64
	ChangedAt time.Time
	// Deleted is true for an item that the upstream no longer has. Such an item has no content, and is
	// kept for KeepDeleted.
	Deleted bool
	Content []byte // canonical JSON; empty in the results of List
	Size    int    // length of the content in bytes; set only in the results of List
}

// KeepDeleted is how long a deleted item is kept, so that readers learn of the deletion.
const KeepDeleted = 30 * 24 * time.Hour

// Fetched is one item as the upstream returned it on a page; it may not be stored yet.
type Fetched struct {
	ID      string
	Hash    store.Hash
	Content []byte // canonical JSON; it is stored compressed
	// Cursor is the value of the field that the setting cursor.field names: a time of RFC 3339 in UTC,
	// or a whole number; empty means that the item has no value.
	Cursor  string
	Deleted bool // the member that the setting deletedFlag names is true

	payload store.Payload // encoded Content; the zero value means that Write.Encode was not called
}

// Page is one page of a list as the upstream returned it, ready to be stored.
type Page struct {
	Version int64     // version of the fetch that returned the page
	Began   time.Time // start of the fetch that returned the page
	Date    time.Time // time of the response by the upstream's clock; zero means unknown
	// NotModified is true if the upstream answered 304: the first page is unchanged.
	NotModified bool
	ETag        string
	Items       []Fetched
	Next        string // position of the next page (Walk.Position); empty means that this page is the last one
}

// Result says whether Collections.Write has stored a page.
type Result int

// The values of Result.
const (
	Stored Result = iota + 1 // the page is stored
	// nothing was stored, because another page was stored meanwhile, a run's step has ended, or the
	// collection was deleted
	Moved
)

// ErrShrunk is wrapped by Written.Refused if a walk would delete more items than Rules.ShrinkGuard
// allows.
var ErrShrunk = errors.New("the list has shrunk")

// ErrRepeats is the error of a walk whose next page is an earlier page of the walk.
var ErrRepeats = errors.New("the link or cursor to the next page repeats an earlier one")
