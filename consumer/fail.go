package consumer

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// failed is why a record comes to no snapshot, for now or for good.
type failed struct {
	reason  schemas.DeadLetterReason
	err     error
	number  int64 // of the last fetch, or the request's version if there was none
	outcome source.Outcome
}

const (
	// suspendAfter is how many dead letters in a row suspend an entity.
	suspendAfter = 3
	// suspended is as good as for ever: the row says so without an end.
	suspended = 10 * 365 * 24 * time.Hour
)

// schedule writes down when the record's entity is to be asked for again, settles
// the request, and only then marks the record as done. After the last round of
// the facet the record becomes a dead letter instead.
//
// The row carries the number of the failed fetch and ends the requests up to it;
// it goes only when a later fetch is stored (semantics §5, retry rows).
func (w *Worker) schedule(ctx context.Context, t *task, d decision, f failed) {
	if w.stillFailed(ctx, t, f) {
		return
	}
	before, err := w.status(ctx, t.request.Entity)
	if err != nil {
		return // given up; the record is read again
	}
	row := w.row(t, f, before)
	row.State = store.Retrying
	wait := d.wait
	if d.counts {
		if before.Rounds >= len(t.facet.Retry) {
			w.bury(ctx, t, f)
			return
		}
		wait = t.facet.Retry[before.Rounds]
		row.Rounds++
	}
	wait = jittered(wait)
	row.Until = time.Now().Add(wait)
	if w.persistDB(ctx, "write down failures", func(ctx context.Context) error { return w.store.Fail(ctx, row, nil) }) != nil {
		return
	}
	end := schemas.End{Entity: row.Entity, Number: f.number, Hold: schemas.HoldRetrying, HoldFor: wait}
	if w.settle(ctx, []schemas.End{end}) != nil {
		return
	}
	t.ledger.finish(t.record.Offset)
	w.retries.Scheduled(ctx, row.Until)
	w.metrics.settled.WithLabelValues("retrying").Inc()
	w.log.Info("retry scheduled", "reason", string(f.reason), "entity", row.Entity.String(), "round", row.Rounds,
		"at", row.Until, "correlation_id", row.CorrelationID, "err", f.err)
}

// fail writes down that the record's entity has failed, with the index entry of
// its dead letter, and settles the request.
func (w *Worker) fail(ctx context.Context, t *task, f failed, letter store.Letter) error {
	var row store.Status
	var holdFor time.Duration
	// A record that could be decoded may hold a lock. That of another source's
	// entity is not ours to lift, and of a facet that is not here nobody asks.
	ours := t.request.EventID != "" && t.request.Source == w.source.Name()
	letter.Entity = schemas.Entity{Source: w.source.Name()}
	if ours {
		letter.Entity = t.request.Entity
	}
	if ours && t.facet.FailedFor > 0 {
		before, err := w.status(ctx, t.request.Entity)
		if err != nil {
			return err
		}
		row = w.row(t, f, before)
		row.Failures++
		row.State, holdFor = store.Failed, t.facet.FailedFor
		row.Until = time.Now().Add(holdFor)
		if row.Failures >= suspendAfter {
			row.State, holdFor = store.Suspended, suspended
			row.Until = time.Time{}
		}
	}
	if err := w.persistDB(ctx, "write down failures", func(ctx context.Context) error { return w.store.Fail(ctx, row, &letter) }); err != nil || !ours {
		return err
	}
	err := w.settle(ctx, []schemas.End{{Entity: t.request.Entity, Number: f.number, Hold: string(row.State), HoldFor: holdFor}})
	if err == nil && row.State == store.Suspended {
		w.metrics.suspended.Inc()
		w.log.Error("entity suspended: nobody asks for it again until a refresh or a replay of it succeeds",
			"entity", row.Entity.String(), "failures", row.Failures, "since", row.Since, "reason", row.Reason)
	}
	return err
}

// row is what is written down of a failed fetch.
func (w *Worker) row(t *task, f failed, before store.Status) store.Status {
	now := time.Now()
	row := store.Status{
		Entity: t.request.Entity, Reason: string(f.reason), Error: f.err.Error(), Number: f.number,
		Rounds: before.Rounds, Failures: before.Failures, Lane: w.lane, Params: t.request.Params,
		CorrelationID: t.request.CorrelationID, Since: before.Since, UpdatedAt: now,
	}
	if row.Since.IsZero() {
		row.Since = now
	}
	for _, h := range t.record.Headers {
		if h.Key == schemas.TraceParent {
			row.TraceParent = string(h.Value)
		}
	}
	return row
}

// status returns what is written down of an entity's failures.
func (w *Worker) status(ctx context.Context, e schemas.Entity) (store.Status, error) {
	var all []store.Status
	err := w.persistDB(ctx, "look up failures", func(ctx context.Context) (err error) {
		all, err = w.store.Statuses(ctx, []schemas.Entity{e})
		return err
	})
	if err != nil {
		return store.Status{}, err
	}
	return all[0], nil
}

// standFor has a retry stand for a later request too, which is not fetched: its
// lock may have covered strict ones, and only a fetch that begins after them may
// end the row. One that began before, and ends after, would else take it away.
func (w *Worker) standFor(ctx context.Context, row store.Status, number int64) error {
	row.Number = number
	return w.persistDB(ctx, "write down failures", func(ctx context.Context) error { return w.store.Fail(ctx, row, nil) })
}

func (w *Worker) settle(ctx context.Context, ends []schemas.End) error {
	return w.persist(ctx, "settle requests", func(ctx context.Context) error { return w.requests.Settle(ctx, ends) })
}

// ofStatus says what that means for a request which is written down of its entity's
// failures, and how the request ends: now, or with Proceed if its fetch fails; there
// an end without a hold says nothing.
func ofStatus(r schemas.UpdateRequest, s store.Status, now time.Time) (schemas.Verdict, schemas.End) {
	end := schemas.End{Entity: r.Entity, Number: r.Version, Hold: string(s.State), HoldFor: s.Until.Sub(now)}
	if s.State == store.Suspended {
		end.HoldFor = suspended
	}
	if end.HoldFor <= 0 {
		end.Hold, end.HoldFor = "", 0
	}
	switch {
	case s.State == "" || r.Version == 0:
		return schemas.Proceed, schemas.End{}
	case r.Version <= s.Number:
		// The fetch that failed began after it. The worker that wrote so may have
		// died before it settled the request.
		return schemas.Failed, end
	case r.Reason.PassesHolds() || end.Hold == "":
		return schemas.Proceed, schemas.End{}
	case s.State != store.Retrying:
		return schemas.Proceed, end
	}
	// Redis has forgotten the hold, or nobody would have asked; the retry will do.
	return schemas.Held, end
}

// stillFailed ends a record whose entity had failed before it was asked for, if it
// was. Redis has forgotten the hold, or nobody would have asked; the fetch was made
// all the same, since somebody who passes holds may have relied on it. The letter of
// then stands for this failure too.
func (w *Worker) stillFailed(ctx context.Context, t *task, f failed) bool {
	if t.held.Hold == "" {
		return false
	}
	end := t.held
	end.Number = f.number
	if w.settle(ctx, []schemas.End{end}) == nil {
		t.ledger.finish(t.record.Offset)
		w.metrics.skipped(schemas.Held)
	}
	return true // given up otherwise, and read again
}
