package limiter

import (
	"context"
	"time"
)

// Settings returns changes of a source's quota.
type Settings interface {
	// Quota returns the newest override and its revision, which rises with every change.
	// Revision 0 means that nothing was ever changed.
	Quota(ctx context.Context, source string) (o Override, revision int64, err error)
}

// Usage stores the count of a day's calls durably, so that it survives a loss of Redis.
type Usage interface {
	// Used returns the stored count of a policy, or the zero Count if none is stored.
	Used(ctx context.Context, source, policy string) (Count, error)
	// SetUsed stores a count. It ignores a count of an earlier day, and a lower count of the
	// same day.
	SetUsed(ctx context.Context, source, policy string, c Count) error
}

// Count is the number of calls that were granted in a calendar day.
type Count struct {
	DayEnd time.Time // the midnight that ends the day
	Calls  int64
	At     time.Time // when the count was read, by Redis' clock
}
