package store

import "time"

// Backlog is the number of due rows, at most the limit of the query, and the due time of the
// oldest due row. Both fields are zero without due rows.
type Backlog struct {
	Count  int64
	Oldest time.Time
}
