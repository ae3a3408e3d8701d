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
	// Version is the version of the fetch that wrote the state last; 0: nothing is stored.
	Version int64
	// ExtractVersion identifies the facet's settings with which the last complete walk extracted its items.
	ExtractVersion int64
	// Visibility is the visibility of the last fetch. Items of another visibility are deleted.
	Visibility string
	Items      int64 // number of stored items, without deleted ones
	// Changed is the version of the fetch that changed an item last; ChangedAt is the start of that fetch.
	Changed   int64
	ChangedAt time.Time
	Cursor    string // see package documentation; empty: none
	ETag      string // validator of the first page of the last complete walk
	// CompleteAt is the start of the last complete walk. FullAt is the start of the last complete full
	// walk. Zero: there was none.
	CompleteAt, FullAt time.Time
	// FullWalk is the id of the last complete full walk of several pages, whose items are in the table
	// walk_items; 0: there is none.
	FullWalk int64
	Walk     Walk

	reset bool // the stored items have another visibility and are deleted with the next write
}

// Walk is an open walk. Its zero value means that no walk is open.
type Walk struct {
	ID    int64     // version of the walk's first fetch; 0: page 1 was not fetched yet
	Began time.Time // start of the walk's first fetch
	// Date is the upstream's time at the start of the walk.
	Date time.Time
	Page int // number of the next page, from 1; 0: no walk is open
	// Position is the position of the next page: a request URI or a cursor of the upstream; empty: page 1.
	Position string
	// Checkpoint is the position of an earlier page. A walk that returns to it repeats itself.
	Checkpoint string
	Full       bool   // the walk requests the whole list
	Greatest   string // greatest cursor value of the walk's items
	ETag       string // validator of the first page
	// ExtractVersion identifies the facet's settings of the walk.
	ExtractVersion int64
}

// Open reports whether a walk has stored a page, and its next page is to be fetched.
func (w Walk) Open() bool { return w.ID != 0 }

// Name returns the name of the walk's next page, which an update request carries.
func (w Walk) Name() string { return strconv.FormatInt(w.ID, 10) + "-" + strconv.Itoa(w.Page) }

// Summary is the content of a collection's snapshot.
type Summary struct {
	// AsOf is the start of the last complete walk; nil: the first walk is not complete.
	AsOf *time.Time `json:"asOf"`
	// ChangedAt is the start of the fetch that changed an item last; nil: no item was ever stored.
	ChangedAt *time.Time `json:"changedAt"`
	// Complete is true if a walk has reached the last page since the collection was created or its visibility changed.
	Complete bool `json:"complete"`
	// Count is the number of items.
	Count int64 `json:"count"`
}

// summary returns the content of the collection's snapshot, and its hash. The hash depends on the
// items and not on AsOf.
func (s State) summary() ([]byte, store.Hash, error) {
	content, err := json.Marshal(Summary{
		AsOf: schemas.OptionalTime(s.CompleteAt), ChangedAt: schemas.OptionalTime(s.ChangedAt),
		Complete: !s.CompleteAt.IsZero(), Count: s.Items,
	})
	return content, sha256.Sum256(fmt.Appendf(nil, "%d %d %v", s.Items, s.Changed, !s.CompleteAt.IsZero())), err
}

// Item is a stored element of a collection.
type Item struct {
	ID   string
	Hash store.Hash // SHA-256 of the canonical content without ignored values
	// Version is the version of the fetch that changed the item last. It orders the changes of a
	// collection. ChangedAt is the start of that fetch.
	Version   int64
	ChangedAt time.Time
	// Deleted is set for an item that the upstream no longer has. Its content is empty, and it is kept
	// for KeepDeleted.
	Deleted bool
	Content []byte // canonical JSON; List does not read it
	Size    int    // bytes of the content; only List reads it
}

// KeepDeleted is how long a deleted item can be read as deleted.
const KeepDeleted = 30 * 24 * time.Hour

// Fetched is an item of a fetched page.
type Fetched struct {
	ID      string
	Hash    store.Hash
	Content []byte // canonical JSON; it is stored compressed
	// Cursor is the value of the cursor's field: a time of RFC 3339 in UTC, or a whole number; empty: none.
	Cursor  string
	Deleted bool // the item's flag says that it is deleted
}

// Page is a fetched page.
type Page struct {
	Version int64     // version of the fetch
	Began   time.Time // start of the fetch
	Date    time.Time // the upstream's time of the response; zero: unknown
	// NotModified is set if the upstream answered that the first page is unchanged.
	NotModified bool
	ETag        string
	Items       []Fetched
	Next        string // position of the next page; empty: the last page
}

// Result says whether a Write has stored its page.
type Result int

// The values of Result.
const (
	Stored Result = iota + 1 // the page is stored
	Moved                    // nothing was written: another page was stored, or the collection was deleted
)

// ErrShrunk is wrapped by Written.Refused of a page whose walk would delete more items than
// Rules.ShrinkGuard allows.
var ErrShrunk = errors.New("the list has shrunk")

// ErrRepeats is the error of a walk whose next page is an earlier page of the walk.
var ErrRepeats = errors.New("the link or cursor to the next page repeats an earlier one")
