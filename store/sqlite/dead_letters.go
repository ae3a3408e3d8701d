package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// DeadLetters returns the chosen dead letters, the newest first, limit of them at most; behind
// one of them unless its time is zero.
func (s *Store) DeadLetters(ctx context.Context, filter store.DeadLetterFilter, behind store.DeadLetter, limit int) ([]store.DeadLetter, error) {
	query, args := filter.SelectNewest(behind, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

// DeadLettersByOffset returns the chosen dead letters in the order in which they lie on their topic,
// behind one of them, limit of them at most.
func (s *Store) DeadLettersByOffset(ctx context.Context, filter store.DeadLetterFilter, behind store.DeadLetterID, limit int) ([]store.DeadLetter, error) {
	query, args := filter.SelectByOffset(behind, limit)
	return s.collectDeadLetters(ctx, filter, query, args)
}

func (s *Store) collectDeadLetters(ctx context.Context, filter store.DeadLetterFilter, query string, args []any) ([]store.DeadLetter, error) {
	letters, err := collect(ctx, s.db, func(l *store.DeadLetter, scan func(...any) error) error { return l.ScanDeadLetter(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the dead letters of %s: %w", filter.Source, err)
	}
	return letters, nil
}

// DeadLetterGroups counts the chosen dead letters by what went wrong, the most frequent first,
// limit of the groups at most. It looks at each of the letters.
func (s *Store) DeadLetterGroups(ctx context.Context, filter store.DeadLetterFilter, limit int) ([]store.DeadLetterGroup, error) {
	query, args := filter.SelectGroups(limit)
	groups, err := collect(ctx, s.db, func(g *store.DeadLetterGroup, scan func(...any) error) error { return g.ScanGroup(scan) }, query, args...)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters of %s: %w", filter.Source, err)
	}
	return groups, nil
}

// HandledPrefixes returns how far the letters of each partition of a topic are handled. Those
// of young and later are young; an entry that is missing before one of missing or later may
// yet be written.
func (s *Store) HandledPrefixes(ctx context.Context, topic string, young, missing time.Time) ([]store.HandledPrefix, error) {
	all, err := collect(ctx, s.db, func(p *store.HandledPrefix, scan func(...any) error) error { return p.ScanPrefix(scan) },
		store.SelectHandledPrefixes, topic, young.UnixMicro(), missing.UnixMicro())
	if err != nil {
		return nil, fmt.Errorf("look for what is handled on %s: %w", topic, err)
	}
	return all, nil
}

// DeleteDeadLettersBefore deletes entries of letters before an offset, which their topic has no longer,
// limit of them at most, and returns how many there were.
func (s *Store) DeleteDeadLettersBefore(ctx context.Context, before store.DeadLetterID, limit int) (int, error) {
	result, err := s.db.ExecContext(ctx, store.DeleteDeadLettersBefore, before.Topic, before.Partition, before.Offset, limit)
	if err != nil {
		return 0, fmt.Errorf("forget letters of %s: %w", before.Topic, err)
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// CreateJob writes a job and the entry that says who ordered it, both or, as with
// store.ErrReplayRunning, neither.
func (s *Store) CreateJob(ctx context.Context, job store.DLQJob, entry store.AuditEntry) error {
	args, err := job.InsertArgs()
	if err == nil {
		err = s.execAudited(ctx, entry, store.ErrReplayRunning, store.InsertJob, args...)
	}
	if err != nil {
		return fmt.Errorf("write the job: %w", err)
	}
	return nil
}

// Job returns a job, or store.ErrJobNotFound.
func (s *Store) Job(ctx context.Context, id string) (job store.DLQJob, err error) {
	err = job.ScanJob(s.db.QueryRowContext(ctx, store.SelectJob, id).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return job, store.ErrJobNotFound
	}
	if err != nil {
		return job, fmt.Errorf("read job %s: %w", id, err)
	}
	return job, nil
}

// Jobs returns the newest jobs, the newest first, limit of them at most.
func (s *Store) Jobs(ctx context.Context, limit int) ([]store.DLQJob, error) {
	jobs, err := collect(ctx, s.db, func(j *store.DLQJob, scan func(...any) error) error { return j.ScanJob(scan) }, store.SelectJobs, limit)
	if err != nil {
		return nil, fmt.Errorf("read the jobs: %w", err)
	}
	return jobs, nil
}

// LeaseJob gives a job of one of the sources that is to be worked on, and is not, to a holder
// until then; ok is false if there is none. It runs, or was stopped and has a chunk that its last holder began. Of
// those who ask at once one gets it.
func (s *Store) LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job store.DLQJob, ok bool, err error) {
	query, args := store.SelectUnleasedJob(sources, now)
	err = job.ScanJob(s.db.QueryRowContext(ctx, query, args...).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return job, false, nil
	}
	if err == nil {
		ok, err = wroteRow(s.db.ExecContext(ctx, store.LeaseJob, job.LeaseArgs(holder, until)...))
	}
	if err != nil {
		return job, false, fmt.Errorf("take on a job: %w", err)
	}
	job.Holder, job.LeaseUntil = holder, until
	return job, ok, nil
}

// NextLeaseEnd returns when a job of one of the sources may be taken on next; zero if there is none.
func (s *Store) NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error) {
	query, args := store.SelectNextLeaseEnd(sources)
	var us int64
	err := s.db.QueryRowContext(ctx, query, args...).Scan(&us)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("look for jobs: %w", err)
	}
	return time.UnixMicro(us).UTC(), nil
}

// SaveJobProgress writes how far a job is, marks the letters that were handled, and writes the
// entry, if there is one and the job has ended: all of it, or nothing with store.ErrConflict
// if another holds it. It returns the job's state: somebody may have stopped it.
func (s *Store) SaveJobProgress(ctx context.Context, job store.DLQJob, handled []store.DeadLetterID, h store.Disposition, entry *store.AuditEntry) (state store.JobState, err error) {
	args, err := job.ProgressArgs()
	if err != nil {
		return "", err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, store.UpdateJobProgress, args...).Scan(&state)
		if errors.Is(err, sql.ErrNoRows) {
			return store.ErrConflict
		}
		for _, id := range store.SortDeadLetterIDs(handled) {
			if err == nil {
				_, err = tx.ExecContext(ctx, store.UpdateDisposition, id.DispositionArgs(h)...)
			}
		}
		if err == nil && entry != nil && state == store.JobDone {
			_, err = tx.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("go on with job %s: %w", job.ID, err)
	}
	return state, nil
}

// SetJobState stops or resumes a job and writes the entry, both or neither; store.ErrJobNotFound if
// it is not in the state before, or is to go on beside another replay of its source.
func (s *Store) SetJobState(ctx context.Context, id string, before, after store.JobState, at time.Time, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrJobNotFound, store.UpdateJobState, id, string(before), string(after), at.UnixMicro())
	if err != nil {
		return fmt.Errorf("switch job %s: %w", id, err)
	}
	return nil
}
