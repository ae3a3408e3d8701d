package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const selectRegistration = `SELECT ` + store.EntityColumns + ` FROM entities e WHERE e.source = $1 AND e.facet = $2 AND e.key = $3`

// lists implements the queries of the console's lists and charts. Store embeds it.
type lists struct{ db *sql.DB }

// StatesInRange returns at most `limit` states of a facet in the order of their keys.
func (l lists) StatesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.State, error) {
	query, args := f.SelectStates(after, limit)
	all, err := collect(ctx, l.db, f.ScanStateInRange, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the states of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// StatusesInRange returns at most `limit` statuses of a facet in the order of their keys.
func (l lists) StatusesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.Status, error) {
	query, args := f.SelectStatuses(after, limit)
	all, err := collect(ctx, l.db, (*store.Status).ScanStatus, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the statuses of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// Registrations returns the registrations of the entities, in the given order. The element of an
// entity that is not registered is nil.
func (l lists) Registrations(ctx context.Context, keys []schemas.Entity) ([]*store.RegisteredEntity, error) {
	all := make([]*store.RegisteredEntity, len(keys))
	for i, e := range keys {
		var found store.RegisteredEntity
		err := found.ScanEntity(l.db.QueryRowContext(ctx, selectRegistration, e.Source, e.Facet, e.Key).Scan)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the registration of %s: %w", e, err)
		}
		all[i] = &found
	}
	return all, nil
}

// DeadLetterHours counts the dead letters that match the filter. Each group of the result contains the
// dead letters of one hour and one reason. The group's field First is the start of its hour. The
// earliest hour comes first.
func (l lists) DeadLetterHours(ctx context.Context, filter store.DeadLetterFilter) ([]store.DeadLetterGroup, error) {
	query, args := filter.SelectHours()
	hours, err := collect(ctx, l.db, (*store.DeadLetterGroup).ScanHour, query, args...)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters of %s by hour: %w", filter.Source, err)
	}
	return hours, nil
}

// DeadLettersOfJob returns at most `limit` dead letters that a job has handled.
func (l lists) DeadLettersOfJob(ctx context.Context, source, job string, limit int) ([]store.DeadLetter, error) {
	query, args := store.DeadLetterFilter{}.SelectOfJob(job, limit)
	all, err := collect(ctx, l.db, func(d *store.DeadLetter, scan func(...any) error) error { return d.ScanDeadLetter(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list the dead letters of %s that the job %s handled: %w", source, job, err)
	}
	return all, nil
}

// SampleEntities returns at most `limit` enabled entities of a source.
func (l lists) SampleEntities(ctx context.Context, source string, limit int) ([]store.RegisteredEntity, error) {
	all, err := selectEntities(ctx, l.db, "SELECT "+store.EntityColumns+" FROM entities e"+" WHERE e.source = $1 AND e.enabled LIMIT $2", source, limit)
	if err != nil {
		return nil, fmt.Errorf("read a sample of the entities of %s: %w", source, err)
	}
	return all, nil
}
