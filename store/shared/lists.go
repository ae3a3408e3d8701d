package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// lists reads states, statuses and due times.
type lists struct{ db DB }

// StatesInRange returns at most `limit` states of a facet in the order of their keys.
func (s lists) StatesInRange(ctx context.Context, f store.KeyRange, after string, limit int) ([]store.State, error) {
	query, args := SelectStates(f, after, limit)
	all, err := Collect(ctx, s.db, func(one *store.State, scan func(...any) error) error { return scanStateInRange(one, f, scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the states of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// StatusesInRange returns at most `limit` statuses of a facet in the order of their keys.
func (s lists) StatusesInRange(ctx context.Context, f store.KeyRange, after string, limit int) ([]store.Status, error) {
	query, args := SelectStatuses(f, after, limit)
	all, err := Collect(ctx, s.db, ScanStatus, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the statuses of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// SelectStates returns the statement, and its arguments, that reads at most `limit` states of the
// range's facet, in the order of their keys. The keys follow the key `after`. The columns are the key and
// then the columns of ScanState. It reads the primary key, so its cost depends on the limit and not on
// the size of the table.
func SelectStates(r store.KeyRange, after string, limit int) (string, []any) {
	return r.InKeyOrder(`SELECT s.key, `+StateColumns+` FROM snapshot_state s`, "s", after, limit)
}

// SelectStatuses is like SelectStates, and returns the columns of ScanStatus.
func SelectStatuses(r store.KeyRange, after string, limit int) (string, []any) {
	return r.InKeyOrder(`SELECT `+StatusColumns+` FROM update_status u`, "u", after, limit)
}

// scanStateInRange reads a state with its entity from a row of SelectStates.
func scanStateInRange(s *store.State, r store.KeyRange, scan func(...any) error) error {
	s.Entity.Source, s.Entity.Facet = r.Source, r.Facet
	return ScanState(s, func(columns ...any) error { return scan(append([]any{&s.Entity.Key}, columns...)...) })
}

// NextRetryTime returns the time at which the next retry of the source is due; zero if the source has
// none.
func (s lists) NextRetryTime(ctx context.Context, source string) (time.Time, error) {
	at, err := ReadTime(ctx, s.db, SelectNextRetryTime, source)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next retry time of %s: %w", source, err)
	}
	return at, nil
}

// NextOutboxTime returns the time at which the next outbox event of the source is due; zero if the
// source has none.
func (s lists) NextOutboxTime(ctx context.Context, source string) (time.Time, error) {
	at, err := ReadTime(ctx, s.db, SelectNextOutboxTime, source)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next due time of the outbox of %s: %w", source, err)
	}
	return at, nil
}
