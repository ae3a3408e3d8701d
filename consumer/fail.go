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
)

// failure is why a record comes to no snapshot, for now or for good.
type failure struct {
	reason  schemas.DeadLetterReason
	err     error
	number  int64 // of the last fetch, or the request's version if there was none
	outcome source.Outcome
}

const (
	// suspendAfter is how many dead letters in a row suspend an entity.
	suspendAfter = 3
	// suspendedHold is as good as for ever: the row says so without an end.
	suspendedHold = 10 * 365 * 24 * time.Hour
)

// scheduleRetry writes down when the record's entity is to be asked for again, settles
// the request, and only then marks the record as done. After the last round of
// the facet the record becomes a dead letter instead.
//
// The row carries the number of the failed fetch and ends the requests up to it;
// it goes only when a later fetch is stored (semantics §5, retry rows).
func (w *Worker) scheduleRetry(ctx context.Context, t *task, d decision, f failure) {
	before, err := w.readStatus(ctx, t.request.Entity)
	if err != nil {
		return // given up; the record is read again
	}
	row := w.statusRow(t, f, before)
	row.State = store.Retrying
	wait := d.wait + jittered(d.wait/4) // never before what the upstream said
	if d.countsFailure {
		if w.endIfHeld(ctx, t, f, before) {
			return
		}
		rounds := len(t.facet.Retry)
		if d.limitRounds {
			rounds = min(rounds, maxOwnFailures-1)
		}
		if before.Rounds >= rounds {
			f.err = fmt.Errorf("failed %d times while other entities were answered well: %w", before.Rounds+1, f.err)
			w.writeDeadLetter(ctx, t, f, before)
			return
		}
		if d.wait == 0 {
			wait = jittered(t.facet.Retry[before.Rounds])
		}
		row.Rounds++
	}
	row.Until = time.Now().Add(wait)
	if w.retryDB(ctx, opFail, func(ctx context.Context) error { return w.store.WriteFailure(ctx, row, nil) }) != nil {
		return
	}
	end := schemas.End{Entity: row.Entity, Number: f.number, Hold: schemas.HoldRetrying, HoldFor: wait}
	if w.settle(ctx, []schemas.End{end}) != nil {
		return
	}
	t.failedNumber = f.number
	t.finish()
	w.retries.WakeAt(ctx, row.Until)
	w.metrics.settled.WithLabelValues(endRetrying).Inc()
	t.traceEnd(endRetrying)
	level := slog.LevelInfo
	if errors.Is(f.err, errEndpointOpen) { // that is logged once
		level = slog.LevelDebug
	}
	w.log.Log(t.traced(ctx), level, "retry scheduled", "reason", string(f.reason), "entity", row.Entity.String(), "round", row.Rounds,
		"at", row.Until, "correlation_id", row.CorrelationID, "err", f.err)
}

// fail writes down that the record's entity has failed, with the index entry of
// its dead letter, and settles the request. before is what was written down of it.
func (w *Worker) fail(ctx context.Context, t *task, f failure, before store.Status, letter store.DeadLetter) error {
	now := time.Now()
	row := w.statusRow(t, f, before)
	row.State, row.Rounds = store.Failed, 0
	row.Until = now.Add(t.facet.FailedFor)
	if before.State != store.Failed || !now.Before(before.Until) {
		row.Failures++ // somebody who passes its hold is not another failure
	}
	switch {
	case !w.owns(t):
		row.State = ""
	case t.facet.FailedFor == 0 && before.State == "":
		row.State = "" // of a facet that is not here nobody asks
	case t.facet.FailedFor == 0 || row.Failures >= suspendAfter || before.State == store.Suspended:
		row.State, row.Until = store.Suspended, time.Time{} // a retry of what was there once must not come round for ever
	}
	letter.Entity = schemas.Entity{Source: w.source.Name()}
	if w.owns(t) {
		letter.Entity = t.request.Entity
	}
	if err := w.retryDB(ctx, opFail, func(ctx context.Context) error { return w.store.WriteFailure(ctx, row, &letter) }); err != nil || !w.owns(t) {
		return err
	}
	err := w.settle(ctx, []schemas.End{endWithHold(t.request.Entity, f.number, row, now)})
	if err == nil && row.State == store.Suspended && before.State != store.Suspended {
		w.metrics.suspended.Inc()
		w.log.ErrorContext(t.traced(ctx), "entity suspended: nobody asks for it again until a refresh or a replay of it succeeds",
			"entity", row.Entity.String(), "failures", row.Failures, "since", row.Since, "reason", row.Reason)
	}
	t.failedNumber = f.number
	return err
}

// owns reports whether the record could be decoded and is of this source: then it
// may hold a lock. That of another source's entity is not ours to lift.
func (w *Worker) owns(t *task) bool {
	return t.request.EventID != "" && t.request.Source == w.source.Name()
}

// statusRow is what is written down of a failed fetch.
func (w *Worker) statusRow(t *task, f failure, before store.Status) store.Status {
	now := time.Now()
	row := store.Status{
		Entity: t.request.Entity, Reason: string(f.reason), Error: f.err.Error(), Version: f.number,
		Rounds: before.Rounds, Failures: before.Failures, Lane: w.lane, Params: t.request.Params,
		CorrelationID: t.request.CorrelationID, Since: before.Since, UpdatedAt: now,
	}
	if row.Since.IsZero() {
		row.Since = now
	}
	row.TraceParent, row.Replay = t.traceParent(), t.replay()
	return row
}

// readStatus returns what is written down of an entity's failures.
func (w *Worker) readStatus(ctx context.Context, e schemas.Entity) (store.Status, error) {
	var all []store.Status
	err := w.retryDB(ctx, opStatus, func(ctx context.Context) (err error) {
		all, err = w.store.Statuses(ctx, []schemas.Entity{e})
		return err
	})
	if err != nil {
		return store.Status{}, err
	}
	return all[0], nil
}

func (w *Worker) settle(ctx context.Context, ends []schemas.End) error {
	return w.retry(ctx, opSettle, func(ctx context.Context) error { return w.requests.Settle(ctx, ends) })
}

// endFromStatus reports whether the request has ended as what is written down of its
// entity says: the fetch that failed began after it. The worker that wrote so may
// have died before it settled the request. A later request is fetched, also where a
// hold should have kept it from being made: if Redis has forgotten the hold, a
// request that passes holds may have relied on this one.
func endFromStatus(r schemas.UpdateRequest, s store.Status, now time.Time) (end schemas.End, failed bool) {
	if s.State == "" || r.Version == 0 || r.Version > s.Version {
		return schemas.End{}, false
	}
	return endWithHold(r.Entity, r.Version, s, now), true
}

// endWithHold returns the end of a request that puts on what is left of a status' hold.
func endWithHold(e schemas.Entity, number int64, s store.Status, now time.Time) schemas.End {
	end := schemas.End{Entity: e, Number: number, Hold: string(s.State), HoldFor: s.Until.Sub(now)}
	if s.State == store.Suspended {
		end.HoldFor = suspendedHold
	}
	if end.HoldFor <= 0 {
		end.Hold, end.HoldFor = "", 0
	}
	return end
}

// endIfHeld ends a record whose entity had failed for good before it was asked for
// by somebody whom the hold should have refused; the letter of then stands for this
// failure too.
func (w *Worker) endIfHeld(ctx context.Context, t *task, f failure, before store.Status) bool {
	if (before.State != store.Failed && before.State != store.Suspended) || t.request.Reason.PassesHolds() {
		return false
	}
	end := endWithHold(t.request.Entity, f.number, before, time.Now())
	if end.Hold == "" {
		return false
	}
	if w.settle(ctx, []schemas.End{end}) == nil {
		w.skip(t, schemas.Failed)
	}
	return true // given up otherwise, and read again
}
