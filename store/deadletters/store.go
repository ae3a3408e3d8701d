package deadletters

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// Store has the operations of a database's store on dead letters and DLQ jobs that are the same
// statements in both databases.
type Store struct{ db shared.DB }

// NewStore returns a Store in a database.
func NewStore(db shared.DB) Store { return Store{db} }

// DeadLetters returns at most `limit` dead letters that match the filter, newest first. If after.At is
// set, the list continues after the dead letter `after`, the last one of the previous page.
func (s Store) DeadLetters(ctx context.Context, filter Filter, after DeadLetter, limit int) ([]DeadLetter, error) {
	query, args := filter.SelectNewest(after, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

// DeadLettersByOffset returns at most `limit` dead letters that match the filter, in the order of
// partition and offset. The list starts after the given position.
func (s Store) DeadLettersByOffset(ctx context.Context, filter Filter, after ID, limit int) ([]DeadLetter, error) {
	query, args := filter.SelectByOffset(after, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

func (s Store) collectDeadLetters(ctx context.Context, filter Filter, query string, args []any) ([]DeadLetter, error) {
	deadLetters, err := shared.Collect(ctx, s.db, (*DeadLetter).ScanDeadLetter, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the dead letters of %s: %w", filter.Source, err)
	}
	return deadLetters, nil
}

// DeadLetterGroups groups the dead letters that match the filter: a group has one reason, one
// fingerprint and one facet. It counts the dead letters of each group, and returns at most `limit`
// groups, largest group first. It reads every matching entry.
func (s Store) DeadLetterGroups(ctx context.Context, filter Filter, limit int) ([]Group, error) {
	query, args := filter.SelectGroups(limit)
	groups, err := shared.Collect(ctx, s.db, (*Group).ScanGroup, query, args...)
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
func (s Store) HandledPrefixes(ctx context.Context, topic string, recent, missing time.Time) ([]HandledPrefix, error) {
	all, err := shared.Collect(ctx, s.db, (*HandledPrefix).ScanPrefix,
		SelectHandledPrefixes, topic, recent.UnixMicro(), missing.UnixMicro())
	if err != nil {
		return nil, fmt.Errorf("find the handled dead letters that may be deleted from the topic %s: %w", topic, err)
	}
	return all, nil
}

// DeleteDeadLettersBefore deletes at most `limit` rows of dead letters of a partition with lower
// offsets than `before`, and returns how many it has deleted. The caller must know that Kafka no
// longer has their records.
func (s Store) DeleteDeadLettersBefore(ctx context.Context, before ID, limit int) (int, error) {
	n, err := s.db.Exec(ctx, DeleteBefore, before.Topic, before.Partition, before.Offset, limit)
	if err != nil {
		return 0, fmt.Errorf("delete rows of dead_letters for the topic %s: %w", before.Topic, err)
	}
	return int(n), nil
}

// CreateJob writes a job and its audit entry in one transaction. It returns ErrReplayRunning
// if the job is a replay and another replay of the source is running or has a chunk in flight.
func (s Store) CreateJob(ctx context.Context, job Job, entry store.AuditEntry) error {
	args, err := job.InsertArgs()
	if err == nil {
		err = shared.ExecAudited(ctx, s.db, entry, ErrReplayRunning, InsertJob, args...)
	}
	if err != nil {
		return fmt.Errorf("create the dlq job: %w", err)
	}
	return nil
}

// Job returns the job with the ID, or ErrJobNotFound.
func (s Store) Job(ctx context.Context, id string) (job Job, err error) {
	found, err := shared.ReadRow(ctx, s.db, job.ScanJob, SelectJob, id)
	if err != nil {
		return job, fmt.Errorf("read dlq job %s: %w", id, err)
	}
	if !found {
		return job, ErrJobNotFound
	}
	return job, nil
}

// Jobs returns at most `limit` jobs, newest first.
func (s Store) Jobs(ctx context.Context, limit int) ([]Job, error) {
	jobs, err := shared.Collect(ctx, s.db, (*Job).ScanJob, SelectJobs, limit)
	if err != nil {
		return nil, fmt.Errorf("read dlq jobs: %w", err)
	}
	return jobs, nil
}

// LeaseJob leases one job of the given sources to `holder` until the given time. The job must need a
// worker and have no valid lease. A job needs a worker if it is running or has a chunk in flight. `ok`
// is false if no such job exists, or if a concurrent call leased the job.
func (s Store) LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job Job, ok bool, err error) {
	lease := JobLease{Holder: holder, Until: until}
	query, args := SelectUnleasedJob(sources, now)
	found, err := shared.ReadRow(ctx, s.db, job.ScanJob, query, args...)
	var written int64
	if err == nil && found {
		written, err = s.db.Exec(ctx, LeaseJob, job.LeaseArgs(lease)...)
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
func (s Store) NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error) {
	query, args := SelectNextLeaseEnd(sources)
	at, err := shared.ReadTime(ctx, s.db, query, args...)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next dlq job lease: %w", err)
	}
	return at, nil
}

// DeadLetterHours counts the dead letters that match the filter. Each group of the result contains the
// dead letters of one hour and one reason. The group's field First is the start of its hour. The
// earliest hour comes first.
func (s Store) DeadLetterHours(ctx context.Context, filter Filter) ([]Group, error) {
	query, args := filter.SelectHours()
	hours, err := shared.Collect(ctx, s.db, (*Group).ScanHour, query, args...)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters of %s by hour: %w", filter.Source, err)
	}
	return hours, nil
}

// DeadLettersOfJob returns at most `limit` dead letters that a job has handled.
func (s Store) DeadLettersOfJob(ctx context.Context, source, job string, limit int) ([]DeadLetter, error) {
	query, args := Filter{}.SelectOfJob(job, limit)
	all, err := shared.Collect(ctx, s.db, (*DeadLetter).ScanDeadLetter, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list the dead letters of %s that the job %s handled: %w", source, job, err)
	}
	return all, nil
}

// SaveJobProgress writes the job's progress, the outcomes of the handled dead letters and, if the
// job is done, the audit entry, in one transaction. It returns the job's stored state, which an
// operator may have changed. If another process holds the lease, it returns store.ErrConflict.
func (s Store) SaveJobProgress(ctx context.Context, job Job, handled []ID, d Disposition, entry *store.AuditEntry) (state JobState, err error) {
	args, err := job.ProgressArgs()
	if err != nil {
		return "", err
	}
	err = s.db.InTx(ctx, func(tx store.Tx) error {
		state = "" // the statement returns no row if another process holds the lease
		if err := tx.Query(ctx, func(scan func(...any) error) error { return scan(&state) }, UpdateJobProgress, args...); err != nil {
			return err
		}
		if state == "" {
			return store.ErrConflict
		}
		var statements []store.Statement
		for _, id := range SortIDs(handled) {
			statements = append(statements, store.Statement{Text: UpdateDisposition, Args: id.DispositionArgs(d)})
		}
		if entry != nil && state == JobDone {
			statements = append(statements, store.Statement{Text: store.InsertAudit, Args: entry.AuditArgs()})
		}
		return tx.Commit(ctx, statements...)
	})
	if err != nil {
		return "", fmt.Errorf("save the progress of dlq job %s: %w", job.ID, err)
	}
	return state, nil
}

// SetJobState changes the state of a job from `before` to `after` and writes the audit entry in one
// transaction. It returns ErrJobNotFound if the job is not in the state `before`. It returns the same
// error if a replay is resumed while another replay of its source is running or has a chunk in flight.
func (s Store) SetJobState(ctx context.Context, id string, before, after JobState, at time.Time, entry store.AuditEntry) error {
	err := shared.ExecAudited(ctx, s.db, entry, ErrJobNotFound, UpdateJobState, id, string(before), string(after), at.UnixMicro())
	if errors.Is(err, store.ErrConflict) { // another replay of the source was resumed concurrently
		err = ErrJobNotFound
	}
	if err != nil {
		return fmt.Errorf("set the state of dlq job %s: %w", id, err)
	}
	return nil
}
