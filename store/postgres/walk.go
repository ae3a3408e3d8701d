package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const selectRegistrations = `SELECT i.n, ` + store.EntityColumns + `
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT * FROM entities e WHERE e.source = i.source AND e.facet = i.facet AND e.key = i.key LIMIT 1) e`

// lists implements the queries of the console's lists and charts. Store embeds it.
type lists struct{ pool *pgxpool.Pool }

// StatesInRange returns at most `limit` states of a facet in the order of their keys.
func (l lists) StatesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.State, error) {
	query, args := f.SelectStates(after, limit)
	all, err := collect(ctx, l.pool, f.ScanStateInRange, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the states of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// StatusesInRange returns at most `limit` statuses of a facet in the order of their keys.
func (l lists) StatusesInRange(ctx context.Context, f store.EntityFilter, after string, limit int) ([]store.Status, error) {
	query, args := f.SelectStatuses(after, limit)
	all, err := collect(ctx, l.pool, (*store.Status).ScanStatus, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the statuses of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// Registrations returns the registrations of the entities, in the given order. The element of an
// entity that is not registered is nil.
func (l lists) Registrations(ctx context.Context, keys []schemas.Entity) ([]*store.RegisteredEntity, error) {
	all := make([]*store.RegisteredEntity, len(keys))
	err := forEachEntity(ctx, readFrom(l.pool), selectRegistrations, keys, func(found *store.RegisteredEntity, scan func(...any) error) error {
		return found.ScanEntity(scan)
	}, func(i int, found store.RegisteredEntity) { all[i] = &found })
	if err != nil {
		return nil, fmt.Errorf("read the registrations of %d entities: %w", len(keys), err)
	}
	return all, nil
}

// DeadLetterHours counts the dead letters that match the filter. Each group of the result contains the
// dead letters of one hour and one reason. The group's field First is the start of its hour. The
// earliest hour comes first.
func (l lists) DeadLetterHours(ctx context.Context, filter store.DeadLetterFilter) ([]store.DeadLetterGroup, error) {
	query, args := filter.SelectHours()
	hours, err := collect(ctx, l.pool, (*store.DeadLetterGroup).ScanHour, query, args...)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters of %s by hour: %w", filter.Source, err)
	}
	return hours, nil
}

// DeadLettersOfJob returns at most `limit` dead letters that a job has handled.
func (l lists) DeadLettersOfJob(ctx context.Context, source, job string, limit int) ([]store.DeadLetter, error) {
	query, args := store.DeadLetterFilter{}.SelectOfJob(job, limit)
	all, err := collect(ctx, l.pool, func(d *store.DeadLetter, scan func(...any) error) error { return d.ScanDeadLetter(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list the dead letters of %s that the job %s handled: %w", source, job, err)
	}
	return all, nil
}

// SampleEntities returns at most `limit` enabled entities of a source, chosen at random. It reads
// random pages of the table: as many as contain about twice as many rows as the limit.
func (l lists) SampleEntities(ctx context.Context, source string, limit int) ([]store.RegisteredEntity, error) {
	var rows float64
	if err := l.pool.QueryRow(ctx, `SELECT reltuples FROM pg_class WHERE oid = 'entities'::regclass`).Scan(&rows); err != nil {
		return nil, fmt.Errorf("read the size of the table entities: %w", err)
	}
	percent := min(100, 200*float64(limit)/max(1, rows))
	all, err := collect(ctx, l.pool, (*store.RegisteredEntity).ScanEntity,
		fmt.Sprintf("SELECT "+store.EntityColumns+" FROM entities e TABLESAMPLE SYSTEM (%f)"+" WHERE e.source = $1 AND e.enabled LIMIT $2", percent), source, limit)
	if err != nil {
		return nil, fmt.Errorf("read a sample of the entities of %s: %w", source, err)
	}
	return all, nil
}
