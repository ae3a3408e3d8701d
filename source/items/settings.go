// Package items defines the settings of a facet that is a collection, and the pages of such a list.
// Package source fetches the pages and extracts their items.
package items

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Collection makes a facet a collection: its content is a list that is kept item by item. Each page of
// the list is fetched by one update request. The facet must have exactly one document.
type Collection struct {
	// ID is the gjson path of an item's id, such as id or node.id. The id must be a string or a number
	// of at most 256 bytes.
	ID string `yaml:"id"`
	// Cursor makes a walk request only the items that have changed since the last complete walk.
	Cursor *Cursor `yaml:"cursor,omitempty"`
	// Order is the order of the list by the field of the cursor. none (the default): unknown. asc: the
	// item with the smallest value is first; then the cursor advances with each page. desc: the item
	// with the greatest value is first; then a walk ends at the first item that is older than the
	// cursor.
	Order string `yaml:"order,omitempty" enum:"none,asc,desc"`
	// Deletes says how deleted items are noticed. none (the default): they are not noticed. flag: a
	// member of the item says that it is deleted. full: walks of the whole list do not find the item
	// any more.
	Deletes string `yaml:"deletes,omitempty" enum:"none,flag,full"`
	// DeletedFlag is the gjson path of the member that is true for a deleted item. It is required with
	// deletes: flag, and not allowed without it.
	DeletedFlag string `yaml:"deletedFlag,omitempty"`
	// FullEvery is the maximum time between two walks of the whole list; 0s means no limit. Such a
	// walk also finds items that earlier walks have missed because the list changed between their
	// pages.
	FullEvery time.Duration `yaml:"fullEvery,omitempty"`
	// Keep is how long an item is kept after its last change; 0s means no limit. If the cursor value
	// of an item is a time that is longer ago, the item is not stored. Keep requires a cursor.
	Keep time.Duration `yaml:"keep,omitempty"`
	// MaxItems is the maximum number of items that are kept after a walk; 0 means no limit. If there
	// are more, the items with the oldest changes are deleted. MaxItems requires a cursor, because
	// without a cursor the next walk would store the deleted items again.
	MaxItems int `yaml:"maxItems,omitempty"`
}

// Cursor configures the cursor of a collection: the value up to which the collection is complete.
type Cursor struct {
	// Field is the gjson path of the cursor value in an item, such as updated_at. The value must be a
	// time (RFC 3339) or a whole number.
	Field string `yaml:"field"`
	// Param is the name of the query parameter for the cursor value, such as since. If it is empty, the
	// order must be desc.
	Param string `yaml:"param,omitempty"`
	// Lookback is the time by which a walk begins before the cursor. It helps if the upstream lists
	// some items late. It has no effect on cursors that are numbers.
	Lookback time.Duration `yaml:"lookback,omitempty"`
}

// The values of Collection.Order and Collection.Deletes. An empty setting means "none".
const (
	orderNone, orderAsc, orderDesc        = "none", "asc", "desc"
	deletesNone, deletesFlag, deletesFull = "none", "flag", "full"
)

// Check returns an error if a setting is invalid. `guarded` is true if the facet has the setting
// shrinkGuard. `conditional` is true if the facet sends validators (ETag).
func (c *Collection) Check(guarded, conditional bool) error {
	switch {
	case c.ID == "":
		return errors.New("id: is missing; write the path of an item's id, as in id: number")
	case !slices.Contains([]string{"", orderNone, orderAsc, orderDesc}, c.Order):
		return fmt.Errorf("order: %q must be %s, %s or %s", c.Order, orderNone, orderAsc, orderDesc)
	case !slices.Contains([]string{"", deletesNone, deletesFlag, deletesFull}, c.Deletes):
		return fmt.Errorf("deletes: %q must be %s, %s or %s", c.Deletes, deletesNone, deletesFlag, deletesFull)
	case (c.Deletes == deletesFlag) != (c.DeletedFlag != ""):
		return errors.New("deletedFlag: write it together with deletes: flag, as in deletedFlag: archived")
	case c.FullEvery < 0 || c.Keep < 0:
		return fmt.Errorf("fullEvery and keep: %v and %v must not be negative", c.FullEvery, c.Keep)
	case c.MaxItems < 0:
		return fmt.Errorf("maxItems: %d must not be negative", c.MaxItems)
	case (c.Keep > 0 || c.MaxItems > 0) && c.Cursor == nil:
		return errors.New("keep and maxItems: need a cursor, because each walk of the whole list would store deleted items again")
	case c.Deletes == deletesFull && !guarded:
		return errors.New("deletes: full needs shrinkGuard, so that a wrong list does not delete all items; write shrinkGuard: 0.5 or another fraction")
	case c.Deletes == deletesFull && c.Cursor != nil && c.FullEvery == 0:
		return errors.New("deletes: full with a cursor needs fullEvery, because only a walk of the whole list finds deleted items; write fullEvery: 24h or another time")
	case c.Cursor == nil && (c.Order == orderAsc || c.Order == orderDesc) && !conditional:
		return fmt.Errorf("order: %s needs a cursor, which names the field of the order", c.Order)
	case conditional && c.Order != orderDesc:
		return errors.New("order: conditional needs desc for a collection, because only then an unchanged first page means an unchanged list")
	}
	for name, path := range map[string]string{"id": c.ID, "deletedFlag": c.DeletedFlag} {
		if err := announced.CheckPath(path); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if c.Cursor == nil {
		return nil
	}
	return c.Cursor.check(c.Order)
}

func (c Cursor) check(order string) error {
	switch {
	case c.Field == "":
		return errors.New("cursor.field: is missing; write the path of the member, as in field: updated_at")
	case c.Param == "" && order != orderDesc:
		return errors.New("cursor.param: is missing; name the query parameter, for example \"param: since\"; if the list has its newest items first, set \"order: desc\" instead")
	case c.Lookback < 0:
		return fmt.Errorf("cursor.lookback: %v must not be negative", c.Lookback)
	}
	if err := announced.CheckPath(c.Field); err != nil {
		return fmt.Errorf("cursor.field: %w", err)
	}
	return nil
}

// ContentSettings returns the settings that determine the items as text; empty for a nil Collection.
func (c *Collection) ContentSettings() string {
	if c == nil {
		return ""
	}
	text := fmt.Sprintf("\ncollection %q", c.ID)
	if c.Cursor != nil {
		text += fmt.Sprintf(" %q", c.Cursor.Field)
	}
	return text
}
