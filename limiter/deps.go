package limiter

import (
	"context"
	"time"
)

// Settings tells what was changed of a source's quota while it runs.
type Settings interface {
	// Quota returns the newest change and its revision, which rises with every
	// change; revision 0: nothing was ever changed.
	Quota(ctx context.Context, source string) (o Override, revision int64, err error)
}

// Usage keeps the count of a day's calls where it outlives Redis.
type Usage interface {
	// Used returns the newest count of a policy, or the zero Count if there is
	// none.
	Used(ctx context.Context, source, policy string) (Count, error)
	// SetUsed writes a count. One of an earlier day, or a lower one of the same
	// day, changes nothing.
	SetUsed(ctx context.Context, source, policy string, c Count) error
}

// Count is how many calls of a calendar day were given out.
type Count struct {
	DayEnd time.Time // the midnight at which the day ends
	Calls  int64
	At     time.Time // when that was so, by Redis' clock
}
