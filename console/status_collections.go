package console

import (
	"time"

	"github.com/freshet/freshet/status"
)

var collectionColumns = []column{textColumn("Facet").explained("collection"), numberColumn("Collections"), numberColumn("Items"), numberColumn("Not complete yet"), numberColumn("Open walks"), textColumn("Oldest began")}

// collectionsEmpty returns the text that is shown if the table of collections has no rows.
func collectionsEmpty(s status.Schedule) string {
	if s.Collections.Error != "" {
		return "Not known: " + s.Collections.Error + "."
	}
	return "No collection is stored."
}

// collectionRows returns a table row for each facet with collections.
func collectionRows(s status.Schedule, now time.Time) [][]statusItem {
	rows := [][]statusItem{}
	if s.Collections.Error != "" {
		return rows
	}
	counted := int64(0)
	for _, t := range s.Collections.Value {
		counted += t.Collections
	}
	more := counted >= s.MaxCollections
	for _, t := range s.Collections.Value {
		oldest := ""
		if !t.OldestWalk.IsZero() {
			oldest = formatAgo(t.OldestWalk, now)
		}
		rows = append(rows, []statusItem{
			{Text: t.Facet},
			{Text: formatCounted(t.Collections, more)},
			{Text: formatCounted(t.Items, more)},
			{Text: formatCounted(t.Incomplete, more)},
			{Text: formatCounted(t.Walks, more)},
			{Text: oldest},
		})
	}
	return rows
}
