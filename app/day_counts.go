package app

import (
	"context"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/store"
)

// dayCountStore stores the calls that quota policies with the window "day" have used.
type dayCountStore interface {
	// Used returns the last stored count of a policy, or a zero Usage if no count is stored.
	Used(ctx context.Context, source, policy string) (store.Usage, error)
	// SetUsed stores a count. It ignores u if the stored count is of a later day, or is higher on the
	// same day.
	SetUsed(ctx context.Context, source, policy string, u store.Usage) error
}

// dayCounts stores the limiter's counts of a day's calls in the database. It implements limiter.Usage.
type dayCounts struct{ store dayCountStore }

// Used returns the stored count of a policy, or the zero Count if none is stored.
func (d dayCounts) Used(ctx context.Context, source, policy string) (limiter.Count, error) {
	u, err := d.store.Used(ctx, source, policy)
	return limiter.Count(u), err
}

// SetUsed stores a count.
func (d dayCounts) SetUsed(ctx context.Context, source, policy string, c limiter.Count) error {
	return d.store.SetUsed(ctx, source, policy, store.Usage(c))
}
