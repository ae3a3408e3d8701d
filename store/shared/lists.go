package shared

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/store"
)

// lists reads rows for the console's lists and charts.
type lists struct{ db DB }

// StatesInRange returns at most `limit` states of a facet in the order of their keys.
func (s lists) StatesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.State, error) {
	query, args := f.SelectStates(after, limit)
	all, err := collect(ctx, s.db, f.ScanStateInRange, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the states of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// StatusesInRange returns at most `limit` statuses of a facet in the order of their keys.
func (s lists) StatusesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.Status, error) {
	query, args := f.SelectStatuses(after, limit)
	all, err := collect(ctx, s.db, (*store.Status).ScanStatus, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the statuses of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// DeadLetterHours counts the dead letters that match the filter. Each group of the result contains the
// dead letters of one hour and one reason. The group's field First is the start of its hour. The
// earliest hour comes first.
func (s lists) DeadLetterHours(ctx context.Context, filter store.DeadLetterFilter) ([]store.DeadLetterGroup, error) {
	query, args := filter.SelectHours()
	hours, err := collect(ctx, s.db, (*store.DeadLetterGroup).ScanHour, query, args...)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters of %s by hour: %w", filter.Source, err)
	}
	return hours, nil
}

// DeadLettersOfJob returns at most `limit` dead letters that a job has handled.
func (s lists) DeadLettersOfJob(ctx context.Context, source, job string, limit int) ([]store.DeadLetter, error) {
	query, args := store.DeadLetterFilter{}.SelectOfJob(job, limit)
	all, err := collect(ctx, s.db, func(d *store.DeadLetter, scan func(...any) error) error { return d.ScanDeadLetter(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list the dead letters of %s that the job %s handled: %w", source, job, err)
	}
	return all, nil
}
