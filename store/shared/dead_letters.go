package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// deadLetters reads and deletes the rows of dead letters, and keeps jobs.
type deadLetters struct{ db DB }

// DeadLetters returns at most `limit` dead letters that match the filter, newest first. If after.At is
// set, the list continues after the dead letter `after`, the last one of the previous page.
func (s deadLetters) DeadLetters(ctx context.Context, filter store.DeadLetterFilter, after store.DeadLetter, limit int) ([]store.DeadLetter, error) {
	query, args := filter.SelectNewest(after, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

// DeadLettersByOffset returns at most `limit` dead letters that match the filter, in the order of
// partition and offset. The list starts after the given position.
func (s deadLetters) DeadLettersByOffset(ctx context.Context, filter store.DeadLetterFilter, after store.DeadLetterID, limit int) ([]store.DeadLetter, error) {
	query, args := filter.SelectByOffset(after, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

func (s deadLetters) collectDeadLetters(ctx context.Context, filter store.DeadLetterFilter, query string, args []any) ([]store.DeadLetter, error) {
	deadLetters, err := collect(ctx, s.db, func(d *store.DeadLetter, scan func(...any) error) error { return d.ScanDeadLetter(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the dead letters of %s: %w", filter.Source, err)
	}
	return deadLetters, nil
}

// DeadLetterGroups groups the dead letters that match the filter: a group has one reason, one
// fingerprint and one facet. It counts the dead letters of each group, and returns at most `limit`
// groups, largest group first. It reads every matching entry.
func (s deadLetters) DeadLetterGroups(ctx context.Context, filter store.DeadLetterFilter, limit int) ([]store.DeadLetterGroup, error) {
	query, args := filter.SelectGroups(limit)
	groups, err := collect(ctx, s.db, func(g *store.DeadLetterGroup, scan func(...any) error) error { return g.ScanGroup(scan) }, query, args...)
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
func (s deadLetters) HandledPrefixes(ctx context.Context, topic string, recent, missing time.Time) ([]store.HandledPrefix, error) {
	all, err := collect(ctx, s.db, func(p *store.HandledPrefix, scan func(...any) error) error { return p.ScanPrefix(scan) },
		store.SelectHandledPrefixes, topic, recent.UnixMicro(), missing.UnixMicro())
	if err != nil {
		return nil, fmt.Errorf("find the handled dead letters that may be deleted from the topic %s: %w", topic, err)
	}
	return all, nil
}

// DeleteDeadLettersBefore deletes at most `limit` rows of dead letters of a partition with lower
// offsets than `before`, and returns how many it has deleted. The caller must know that Kafka no
// longer has their records.
func (s deadLetters) DeleteDeadLettersBefore(ctx context.Context, before store.DeadLetterID, limit int) (int, error) {
	n, err := s.db.Exec(ctx, store.DeleteDeadLettersBefore, before.Topic, before.Partition, before.Offset, limit)
	if err != nil {
		return 0, fmt.Errorf("delete rows of dead_letters for the topic %s: %w", before.Topic, err)
	}
	return int(n), nil
}

// CreateJob writes a job and its audit entry in one transaction. It returns store.ErrReplayRunning
// if the job is a replay and another replay of the source is running or has a chunk in flight.
func (s deadLetters) CreateJob(ctx context.Context, job store.DLQJob, entry store.AuditEntry) error {
	args, err := job.InsertArgs()
	if err == nil {
		err = s.db.ExecAudited(ctx, entry, store.ErrReplayRunning, store.InsertJob, args...)
	}
	if err != nil {
		return fmt.Errorf("create the dlq job: %w", err)
	}
	return nil
}

// Job returns the job with the ID, or store.ErrJobNotFound.
func (s deadLetters) Job(ctx context.Context, id string) (job store.DLQJob, err error) {
	found, err := readRow(ctx, s.db, job.ScanJob, store.SelectJob, id)
	if err != nil {
		return job, fmt.Errorf("read dlq job %s: %w", id, err)
	}
	if !found {
		return job, store.ErrJobNotFound
	}
	return job, nil
}

// Jobs returns at most `limit` jobs, newest first.
func (s deadLetters) Jobs(ctx context.Context, limit int) ([]store.DLQJob, error) {
	jobs, err := collect(ctx, s.db, func(j *store.DLQJob, scan func(...any) error) error { return j.ScanJob(scan) }, store.SelectJobs, limit)
	if err != nil {
		return nil, fmt.Errorf("read dlq jobs: %w", err)
	}
	return jobs, nil
}

// LeaseJob leases one job of the given sources to `holder` until the given time. The job must need a
// worker and have no valid lease. A job needs a worker if it is running or has a chunk in flight. `ok`
// is false if no such job exists, or if a concurrent call leased the job.
func (s deadLetters) LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job store.DLQJob, ok bool, err error) {
	lease := store.JobLease{Holder: holder, Until: until}
	query, args := store.SelectUnleasedJob(sources, now)
	found, err := readRow(ctx, s.db, job.ScanJob, query, args...)
	var written int64
	if err == nil && found {
		written, err = s.db.Exec(ctx, store.LeaseJob, job.LeaseArgs(lease)...)
	}
	if err != nil {
		return job, false, fmt.Errorf("lease a dlq job: %w", err)
	}
	if written == 0 {
		return job, false, nil
	}
	job.Lease = lease
	return job, true, nil
}

// NextLeaseEnd returns the earliest time at which a job of one of the sources can be leased; zero
// if no job needs a worker.
func (s deadLetters) NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error) {
	query, args := store.SelectNextLeaseEnd(sources)
	at, err := readTime(ctx, s.db, query, args...)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next dlq job lease: %w", err)
	}
	return at, nil
}
