package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/freshet/freshet/store"
)

// DeadLetters returns at most `limit` dead letters that match the filter, newest first. If after.At is
// set, the list continues after the dead letter `after`, the last one of the previous page.
func (s *Store) DeadLetters(ctx context.Context, filter store.DeadLetterFilter, after store.DeadLetter, limit int) ([]store.DeadLetter, error) {
	query, args := filter.SelectNewest(after, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

// DeadLettersByOffset returns at most `limit` dead letters that match the filter, in the order of
// partition and offset. The list starts after the given position.
func (s *Store) DeadLettersByOffset(ctx context.Context, filter store.DeadLetterFilter, after store.DeadLetterID, limit int) ([]store.DeadLetter, error) {
	query, args := filter.SelectByOffset(after, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

func (s *Store) collectDeadLetters(ctx context.Context, filter store.DeadLetterFilter, query string, args []any) ([]store.DeadLetter, error) {
	deadLetters, err := collect(ctx, s.pool, func(d *store.DeadLetter, scan func(...any) error) error { return d.ScanDeadLetter(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the dead letters of %s: %w", filter.Source, err)
	}
	return deadLetters, nil
}

// DeadLetterGroups groups the dead letters that match the filter: a group has one reason, one
// fingerprint and one facet. It counts the dead letters of each group, and returns at most `limit`
// groups, largest group first. It reads every matching entry.
func (s *Store) DeadLetterGroups(ctx context.Context, filter store.DeadLetterFilter, limit int) ([]store.DeadLetterGroup, error) {
	query, args := filter.SelectGroups(limit)
	groups, err := collect(ctx, s.pool, func(g *store.DeadLetterGroup, scan func(...any) error) error { return g.ScanGroup(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters of %s: %w", filter.Source, err)
	}
	return groups, nil
}

// HandledPrefixes returns, for each partition of a topic, the range of offsets at the partition's
// start in which all dead letters are handled. The range ends before a dead letter from the time
// `recent` or later, even if it is handled. It also ends before an offset without a row in
// dead_letters if the next row is from the time `missing` or later: the missing row may still be
// written.
func (s *Store) HandledPrefixes(ctx context.Context, topic string, recent, missing time.Time) ([]store.HandledPrefix, error) {
	all, err := collect(ctx, s.pool, func(p *store.HandledPrefix, scan func(...any) error) error { return p.ScanPrefix(scan) },
		store.SelectHandledPrefixes, topic, recent.UnixMicro(), missing.UnixMicro())
	if err != nil {
		return nil, fmt.Errorf("find the handled dead letters that may be deleted from the topic %s: %w", topic, err)
	}
	return all, nil
}

// DeleteDeadLettersBefore deletes at most `limit` rows of dead letters of a partition with lower
// offsets than `before`, and returns how many it has deleted. The caller must know that Kafka no
// longer has their records.
func (s *Store) DeleteDeadLettersBefore(ctx context.Context, before store.DeadLetterID, limit int) (int, error) {
	tag, err := s.pool.Exec(ctx, store.DeleteDeadLettersBefore, before.Topic, before.Partition, before.Offset, limit)
	if err != nil {
		return 0, fmt.Errorf("delete rows of dead_letters for the topic %s: %w", before.Topic, classifyError(err))
	}
	return int(tag.RowsAffected()), nil
}

// CreateJob writes a job and its audit entry in one transaction. It returns store.ErrReplayRunning
// if the job is a replay and another replay of the source is running or has a chunk in flight.
func (s *Store) CreateJob(ctx context.Context, job store.DLQJob, entry store.AuditEntry) error {
	args, err := job.InsertArgs()
	if err == nil {
		err = s.execAudited(ctx, entry, store.ErrReplayRunning, store.InsertJob, args...)
	}
	if err != nil {
		return fmt.Errorf("create the dlq job: %w", err)
	}
	return nil
}

// Job returns the job with the ID, or store.ErrJobNotFound.
func (s *Store) Job(ctx context.Context, id string) (job store.DLQJob, err error) {
	err = job.ScanJob(s.pool.QueryRow(ctx, store.SelectJob, id).Scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return job, store.ErrJobNotFound
	}
	if err != nil {
		return job, fmt.Errorf("read dlq job %s: %w", id, err)
	}
	return job, nil
}

// Jobs returns at most `limit` jobs, newest first.
func (s *Store) Jobs(ctx context.Context, limit int) ([]store.DLQJob, error) {
	jobs, err := collect(ctx, s.pool, func(j *store.DLQJob, scan func(...any) error) error { return j.ScanJob(scan) }, store.SelectJobs, limit)
	if err != nil {
		return nil, fmt.Errorf("read dlq jobs: %w", err)
	}
	return jobs, nil
}

// LeaseJob leases one job of the given sources to `holder` until the given time. The job must need a
// worker and have no valid lease. A job needs a worker if it is running or has a chunk in flight. `ok`
// is false if no such job exists, or if a concurrent call leased the job.
func (s *Store) LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job store.DLQJob, ok bool, err error) {
	query, args := store.SelectUnleasedJob(sources, now)
	err = job.ScanJob(s.pool.QueryRow(ctx, query, args...).Scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return job, false, nil
	}
	if err == nil {
		var tag pgconn.CommandTag
		tag, err = s.pool.Exec(ctx, store.LeaseJob, job.LeaseArgs(holder, until)...)
		ok = tag.RowsAffected() == 1
	}
	if err != nil {
		return job, false, fmt.Errorf("lease a dlq job: %w", classifyError(err))
	}
	job.Holder, job.LeaseUntil = holder, until
	return job, ok, nil
}

// NextLeaseEnd returns the earliest time at which a job of one of the sources can be leased; zero
// if no job needs a worker.
func (s *Store) NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error) {
	query, args := store.SelectNextLeaseEnd(sources)
	var us int64
	err := s.pool.QueryRow(ctx, query, args...).Scan(&us)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next dlq job lease: %w", err)
	}
	return time.UnixMicro(us).UTC(), nil
}

// SaveJobProgress writes the job's progress, the outcomes of the handled dead letters and, if the
// job is done, the audit entry, in one transaction. It returns the job's stored state, which an
// operator may have changed. If another process holds the lease, it returns store.ErrConflict.
func (s *Store) SaveJobProgress(ctx context.Context, job store.DLQJob, handled []store.DeadLetterID, d store.Disposition, entry *store.AuditEntry) (state store.JobState, err error) {
	args, err := job.ProgressArgs()
	if err != nil {
		return "", err
	}
	err = classifyError(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, store.UpdateJobProgress, args...).Scan(&state)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.ErrConflict
		}
		if err != nil {
			return err
		}
		var b pgx.Batch
		for _, id := range store.SortDeadLetterIDs(handled) {
			b.Queue(store.UpdateDisposition, id.DispositionArgs(d)...)
		}
		if entry != nil && state == store.JobDone {
			b.Queue(store.InsertAudit, entry.AuditArgs()...)
		}
		return tx.SendBatch(ctx, &b).Close()
	}))
	if err != nil {
		return "", fmt.Errorf("save the progress of dlq job %s: %w", job.ID, err)
	}
	return state, nil
}

// SetJobState changes the state of a job from `before` to `after` and writes the audit entry in one
// transaction. It returns store.ErrJobNotFound if the job is not in the state `before`. It returns the
// same error if a replay is resumed while another replay of its source is running or has a chunk in
// flight.
func (s *Store) SetJobState(ctx context.Context, id string, before, after store.JobState, at time.Time, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrJobNotFound, store.UpdateJobState, id, string(before), string(after), at.UnixMicro())
	// 23505 is a violation of a unique index: another replay of the source was resumed
	// concurrently.
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23505" {
		err = store.ErrJobNotFound
	}
	if err != nil {
		return fmt.Errorf("set the state of dlq job %s: %w", id, err)
	}
	return nil
}
