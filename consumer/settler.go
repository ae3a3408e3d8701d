package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// failure is the reason why a record did not result in a snapshot.
type failure struct {
	reason  schemas.DeadLetterReason
	err     error
	number  int64 // number of the last fetch, or the request's version if no fetch was made
	outcome source.Outcome
}

const (
	// suspendAfter is how many consecutive dead letters suspend an entity.
	suspendAfter = 3
	// suspendedHold is the TTL of a suspended entity's hold in Redis. The status row in the
	// database has no end time.
	suspendedHold = 10 * 365 * 24 * time.Hour
)

// settler settles the requests of records that result in no snapshot: they are skipped, get a scheduled
// retry, or become dead letters.
type settler struct {
	*base
	db       *database
	requests Requests
	retries  Retries
	dlq      *deadLetterTopic
	walks    *walks
}

// skip marks a record as done whose request needs no fetch.
func (s *settler) skip(t *task, v schemas.Verdict) {
	s.metrics.skipped(v)
	t.traceEnd(string(v))
	t.finish()
}

// scheduleRetry stores a scheduled retry, settles the request, and then marks the record as done.
// After the facet's last retry round it writes a dead letter instead.
//
// The status row contains the number of the failed fetch. The failure settles all requests of the
// entity whose version is at most this number. The row is deleted only when a later fetch is stored
// (semantics §5, retry rows).
func (s *settler) scheduleRetry(ctx context.Context, t *task, d decision, f failure) {
	before, err := s.db.status(ctx, t.request.Entity)
	if err != nil {
		return // ctx ended; the record stays uncommitted, and a worker reads it again
	}
	row := s.statusRow(t, f, before)
	row.State = store.Retrying
	wait := d.wait + jittered(d.wait/4) // jitter is added and never subtracted, so that the retry is not earlier than the upstream requested
	if d.countsFailure {
		if s.endIfHeld(ctx, t, f, before) {
			return
		}
		rounds := len(t.facet.Retry)
		if d.limitRounds {
			rounds = min(rounds, maxOwnFailures-1)
		}
		if before.Rounds >= rounds {
			if t.facet.Derived == nil {
				f.err = fmt.Errorf("failed %d times while other entities succeeded: %w", before.Rounds+1, f.err)
			}
			s.writeDeadLetter(ctx, t, f, before)
			return
		}
		if d.wait == 0 {
			wait = jittered(t.facet.Retry[before.Rounds])
		}
		row.Rounds++
	}
	row.Until = time.Now().Add(wait)
	if s.db.retry(ctx, opFail, func(ctx context.Context) error { return s.db.WriteFailure(ctx, row, nil) }) != nil {
		return
	}
	end := schemas.End{Entity: row.Entity, Number: f.number, Hold: schemas.HoldRetrying, HoldFor: wait}
	if s.settle(ctx, []schemas.End{end}) != nil {
		return
	}
	s.retries.WakeAt(ctx, row.Until)
	if len(row.AliasUsers) > 0 {
		s.retries.WakeAt(ctx, row.UpdatedAt)
	}
	t.failedNumber = f.number
	t.finish()
	s.metrics.settled.WithLabelValues(endRetrying).Inc()
	t.traceEnd(endRetrying)
	level := slog.LevelInfo
	if errors.Is(f.err, errEndpointOpen) { // the open breaker is already logged as a condition, so the retries that it causes are logged at level DEBUG
		level = slog.LevelDebug
	}
	s.log.Log(t.traced(ctx), level, "retry scheduled", "reason", string(f.reason), "entity", row.Entity.String(), "round", row.Rounds,
		"at", row.Until, "correlation_id", row.CorrelationID, "err", f.err)
}

// fail stores that the record's entity has failed, together with the row of its dead letter, and
// settles the request. `before` is the stored status of the entity before this failure.
func (s *settler) fail(ctx context.Context, t *task, f failure, before store.Status, deadLetter deadletters.DeadLetter) error {
	now := time.Now()
	row := s.statusRow(t, f, before)
	row.State, row.Rounds = store.Failed, 0
	row.Until = now.Add(t.facet.FailedFor)
	if before.State != store.Failed || !now.Before(before.Until) {
		// this dead letter counts toward suspendAfter; a failure while the previous failure's hold
		// lasts, such as the failure of a replay, does not
		row.Failures++
	}
	switch {
	case !t.ownedBy(s.source):
		row.State = ""
	case t.facet.FailedFor == 0 && before.State == "":
		row.State = "" // store no status, because this process has no such facet in its configuration (FailedFor is 0), and no retry of the entity is stored
	case t.facet.FailedFor == 0 || row.Failures >= suspendAfter || before.State == store.Suspended:
		row.State, row.Until = store.Suspended, time.Time{} // suspend the entity also if its facet was removed from the configuration (FailedFor is 0), because the suspension ends the entity's stored retries
	}
	deadLetter.Entity = schemas.Entity{Source: s.source.Name()}
	if t.ownedBy(s.source) {
		deadLetter.Entity = t.request.Entity
	}
	if err := s.db.retry(ctx, opFail, func(ctx context.Context) error { return s.db.WriteFailure(ctx, row, &deadLetter) }); err != nil || !t.ownedBy(s.source) {
		return err
	}
	err := s.settle(ctx, []schemas.End{endWithHold(t.request.Entity, f.number, row, now)})
	if err == nil && row.State == store.Suspended && before.State != store.Suspended {
		s.metrics.suspended.Inc()
		s.log.ErrorContext(t.traced(ctx), "entity suspended until a refresh or a replay of the entity succeeds",
			"entity", row.Entity.String(), "failures", row.Failures, "since", row.Since, "reason", row.Reason)
	}
	if len(row.AliasUsers) > 0 {
		s.retries.WakeAt(ctx, row.UpdatedAt)
	}
	t.failedNumber = f.number
	return err
}

// ownedBy reports whether the record could be decoded and belongs to the source. Only then may the
// worker release the entity's lock.
func (t *task) ownedBy(s *source.Source) bool {
	return t.request.EventID != "" && t.request.Source == s.Name()
}

// statusRow returns the status of an entity after a failed fetch.
func (s *settler) statusRow(t *task, f failure, before store.Status) store.Status {
	now := time.Now()
	row := store.Status{
		Entity: t.request.Entity, Reason: string(f.reason), Error: f.err.Error(), Version: f.number,
		Rounds: before.Rounds, Failures: before.Failures, Lane: s.lane, Params: t.request.Params, Depth: t.request.Depth,
		CorrelationID: t.request.CorrelationID, Since: before.Since, UpdatedAt: now,
	}
	if row.Since.IsZero() {
		row.Since = now
	}
	row.TraceParent, row.Replay, row.AliasUsers = t.traceParent(), t.replay(), t.facet.AliasUsers()
	return row
}

func (s *settler) settle(ctx context.Context, ends []schemas.End) error {
	return s.retry(ctx, opSettle, func(ctx context.Context) error { return s.requests.Settle(ctx, ends) })
}

// endFromStatus reports whether the entity's stored failure settles the request, because the failed
// fetch began after the request. This happens if the worker that stored the failure crashed before
// it settled the request. A request that was made after the failed fetch is not settled. The
// failure's hold normally rejects such a request. If Redis lost the hold, it is accepted, and a
// request that bypasses holds may since have been coalesced with it.
func endFromStatus(r schemas.UpdateRequest, s store.Status, now time.Time) (end schemas.End, failed bool) {
	if s.State == "" || r.Version == 0 || r.Version > s.Version {
		return schemas.End{}, false
	}
	return endWithHold(r.Entity, r.Version, s, now), true
}

// endWithHold returns the end of a request that failed. When this end is settled, Redis sets the
// entity's hold again, for the time that remains until s.Until.
func endWithHold(e schemas.Entity, number int64, s store.Status, now time.Time) schemas.End {
	end := schemas.End{Entity: e, Number: number, Hold: string(s.State), HoldFor: s.Until.Sub(now)}
	if s.Reason == schemas.HoldAlias {
		end.Hold = schemas.HoldAlias
	}
	if s.State == store.Suspended {
		end.HoldFor = suspendedHold
	}
	if end.HoldFor <= 0 {
		end.Hold, end.HoldFor = "", 0
	}
	return end
}

// endIfHeld settles the request of a record without a new dead letter, if its entity had already failed
// permanently before the request was made. The entity's hold should have rejected such a request. The
// existing dead letter covers this failure too. It returns true if it has settled the request.
func (s *settler) endIfHeld(ctx context.Context, t *task, f failure, before store.Status) bool {
	if (before.State != store.Failed && before.State != store.Suspended) || t.request.Reason.PassesHolds() {
		return false
	}
	end := endWithHold(t.request.Entity, f.number, before, time.Now())
	if end.Hold == "" {
		return false
	}
	if s.settle(ctx, []schemas.End{end}) == nil {
		s.skip(t, schemas.Failed)
	}
	return true // true also if settling failed, because the record then stays uncommitted and is read again
}
