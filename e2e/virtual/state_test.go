package virtual

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// snapshot is a row of snapshot_state.
type snapshot struct {
	version int64
	checked time.Time
}

// status is a row of update_status.
type status struct {
	state          string
	version        int64
	updated, until time.Time
}

// lock is a live lock in Redis.
type lock struct {
	key     string
	version int64
	state   string
}

// overdue has the numbers of database rows that have been due for too long, by kind.
type overdue struct {
	entities, retries, claims, events int
	oldest                            time.Duration // how long the oldest entity is overdue
}

func (o *oracle) each(ctx context.Context, query string, scan func(scan func(...any) error) error) error {
	rows, err := o.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (o *oracle) readSnapshots(ctx context.Context, s *state) error {
	s.snapshots = map[string]snapshot{}
	err := o.each(ctx, "SELECT key, version, last_checked_at FROM snapshot_state", func(scan func(...any) error) error {
		var key string
		var version, checked int64
		err := scan(&key, &version, &checked)
		s.snapshots[key] = snapshot{version, time.UnixMicro(checked)}
		return err
	})
	if err != nil {
		return err
	}
	return o.each(ctx, "SELECT key, old, new, old_checked, new_checked FROM regressions", func(scan func(...any) error) error {
		var key string
		var before, after, checkedBefore, checkedAfter int64
		err := scan(&key, &before, &after, &checkedBefore, &checkedAfter)
		s.regressions = append(s.regressions, fmt.Sprintf("%s: version %d replaced %d, checked at %v, before at %v", key, after, before,
			s.w.since(time.UnixMicro(checkedAfter)), s.w.since(time.UnixMicro(checkedBefore))))
		return err
	})
}

func (o *oracle) readStatuses(ctx context.Context, s *state) error {
	s.statuses = map[string]status{}
	return o.each(ctx, "SELECT key, state, version, updated_at, next_retry_at FROM update_status", func(scan func(...any) error) error {
		var key string
		var f status
		var updated, until int64
		err := scan(&key, &f.state, &f.version, &updated, &until)
		f.updated, f.until = time.UnixMicro(updated), time.UnixMicro(until)
		s.statuses[key] = f
		return err
	})
}

func (o *oracle) readOverdue(ctx context.Context, s *state) error {
	count := func(to *int, late time.Duration, query string) error {
		return o.db.QueryRowContext(ctx, query, s.now.Add(-late).UnixMicro()).Scan(to)
	}
	if err := count(&s.overdue.retries, maxRetryDelay, "SELECT count(*) FROM update_status WHERE state = 'RETRYING' AND next_retry_at < ?"); err != nil {
		return err
	}
	if err := count(&s.overdue.claims, maxClaimDelay, "SELECT count(*) FROM schedule_claims WHERE until < ?"); err != nil {
		return err
	}
	if err := count(&s.overdue.events, maxClaimDelay, "SELECT count(*) FROM outbox WHERE due_at < ?"); err != nil {
		return err
	}
	var due int64
	if err := o.db.QueryRowContext(ctx, "SELECT coalesce(min(due_at), 0) FROM entities WHERE enabled").Scan(&due); err != nil {
		return err
	}
	if due > 0 {
		s.overdue.oldest = s.now.Sub(time.UnixMicro(due))
	}
	return count(&s.overdue.entities, maxDueDelay, "SELECT count(*) FROM entities WHERE enabled AND due_at < ?")
}

// locks returns the live locks in Redis.
func (w *world) locks() (all []lock) {
	now := w.redisNow().UnixMilli()
	for _, key := range w.redis.Keys() {
		entity, is := strings.CutPrefix(key, "upd:{"+sourceName+"/"+facetName+"/")
		if !is {
			continue
		}
		var lane, state string
		var version, until int64
		if _, err := fmt.Sscan(w.redis.HGet(key, "lock"), &lane, &version, &until, &state); err == nil && until > now {
			all = append(all, lock{strings.TrimSuffix(entity, "}"), version, state})
		}
	}
	return all
}
