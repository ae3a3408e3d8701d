package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// claims keeps the claims of schedulers, due times and prices.
type claims struct{ db DB }

// FinishClaim deletes a claim after all its requests have been enqueued. It has no effect on a
// claim that was taken over or deleted.
func (s claims) FinishClaim(ctx context.Context, id string) error {
	if _, err := s.db.Exec(ctx, store.DeleteClaim, id); err != nil {
		return fmt.Errorf("finish claim %s: %w", id, err)
	}
	return nil
}

// RenewClaim extends a claim to the time `until`; `held` is false if the claim was taken over or
// deleted.
func (s claims) RenewClaim(ctx context.Context, id string, until time.Time) (held bool, err error) {
	written, err := s.db.Exec(ctx, store.RenewClaim, id, until.UnixMicro())
	if err != nil {
		return false, fmt.Errorf("renew claim %s: %w", id, err)
	}
	return written > 0, nil
}

// NextEntityTime returns the earliest due time of the source's entities; zero if it has none.
func (s claims) NextEntityTime(ctx context.Context, source string) (time.Time, error) {
	at, err := readTime(ctx, s.db, store.SelectNextDueEntity, source)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next due time of entities of %s: %w", source, err)
	}
	return at, nil
}

// Price returns the current price of a source's calls and the time when it was set; zero if it was
// never set.
func (s claims) Price(ctx context.Context, source string) (price float64, at time.Time, err error) {
	var us int64
	found, err := readRow(ctx, s.db, func(scan func(...any) error) error { return scan(&price, &us) }, store.SelectPrice, source)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("read the price of %s: %w", source, err)
	}
	if !found {
		return 0, time.Time{}, nil
	}
	return price, time.UnixMicro(us).UTC(), nil
}

// SetPrice writes the price, unless the stored price was set less than minInterval before the time
// `at`. It reports whether it wrote the price. If several calls run concurrently, only one of them
// writes its price.
func (s claims) SetPrice(ctx context.Context, source string, price float64, at time.Time, minInterval time.Duration) (set bool, err error) {
	written, err := s.db.Exec(ctx, store.SetPrice, source, price, at.UnixMicro(), at.Add(-minInterval).UnixMicro())
	if err != nil {
		return false, fmt.Errorf("write the price of %s: %w", source, err)
	}
	return written > 0, nil
}
