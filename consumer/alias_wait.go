package consumer

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// aliasWait is how long an entity waits for its alias at most. Usually the wait ends earlier, when the
// alias or a failure of the alias is stored. Only if the request of the alias is lost does the wait
// last so long.
const aliasWait = 10 * time.Minute

// maxAliasHold bounds the wait for a suspended alias. A suspension has no end time.
const maxAliasHold = 24 * time.Hour

// wait requests the aliases of the task, and ends its record with a durable retry, which the write of
// the alias makes due. It reports true if the stored alias can be used although it is no longer fresh,
// because it cannot be checked now. `dead` is the hash of an alias with which the upstream did not
// find the entity; `number` is the number of the retry.
//
// The order is: request, settle, store the retry. The retry is stored after the request, so that a
// stored retry always has a requested alias. It is stored after the settle, so that the lock of this
// record does not cover the retry's request. The transaction that stores the retry makes it due at once
// if a later alias, or a later failure of it, is stored than this record has read.
func (a *aliases) wait(ctx, hard context.Context, at *attempt, dead string, number int64) (usable bool) {
	w, t := a.w, at.t
	failures, err := a.failures(ctx, t)
	if err != nil {
		return false
	}
	held, err := a.request(ctx, t, dead)
	if err != nil {
		return false
	}
	if held.reason != "" && dead == "" && t.aliasesUsable() {
		return true
	}
	if !at.start() {
		return false
	}
	before, err := w.db.status(hard, t.request.Entity)
	if err != nil {
		return false
	}
	row := w.settler.statusRow(t, failure{reason: schemas.HoldAlias, err: errors.New(t.waitText(dead, held)), number: number}, before)
	row.State, row.DeadAlias, row.Aliases, row.AliasFailures, row.AliasUsers = store.Retrying, dead, t.aliasStates(), failures, nil
	hold := min(max(time.Until(held.until), 0), maxAliasHold) + aliasWait
	row.Until = time.UnixMicro(row.UpdatedAt.Add(hold).UnixMicro()).UTC()
	if w.settler.settle(hard, []schemas.End{{Entity: row.Entity, Number: number, Hold: cmp.Or(held.reason, schemas.HoldAlias), HoldFor: hold}}) != nil {
		return false
	}
	if w.db.retry(hard, opFail, func(ctx context.Context) error { return w.db.WriteFailure(ctx, row, nil) }) != nil {
		return false
	}
	stored, err := w.db.status(hard, row.Entity)
	if err != nil {
		return false
	}
	if stored.State == store.Retrying {
		w.settler.retries.WakeAt(hard, stored.Until)
	}
	t.failedNumber = number
	t.finish()
	w.metrics.settled.WithLabelValues(endRetrying).Inc()
	t.traceEnd(endRetrying)
	w.log.DebugContext(t.traced(hard), "entity waits for its alias", "entity", row.Entity.String(), "reason", row.Error, "correlation_id", row.CorrelationID)
	return false
}

// failures returns, for each alias of the task, the version of its stored failure; 0 means that it has
// none.
func (a *aliases) failures(ctx context.Context, t *task) (versions []int64, err error) {
	var found []store.Status
	err = a.w.db.retry(ctx, opStatus, func(ctx context.Context) (err error) {
		found, err = a.w.db.Statuses(ctx, t.aliasEntities())
		return err
	})
	for _, s := range found {
		versions = append(versions, s.Version)
	}
	return versions, err
}

// aliasHold says why an alias is not fetched now, and until when. It is empty if no hold prevents the
// fetch.
type aliasHold struct {
	reason string
	until  time.Time
}

// request enqueues a request for each alias that is not fresh, and for each alias of a dead entity. It
// returns the longest hold of these aliases, or the zero value. It repeats the requests until Kafka has
// acknowledged them or they are held; it fails only if ctx ends.
func (a *aliases) request(ctx context.Context, t *task, dead string) (held aliasHold, err error) {
	for i := range t.aliases {
		s := &t.aliases[i]
		if dead == "" && s.verdict(t, time.Now()) != aliasNeeded {
			continue
		}
		r := schemas.UpdateRequest{
			Entity: t.aliasEntities()[i], Lane: a.w.lane, Reason: aliasReason(t.request.Reason, dead != ""),
			CorrelationID: t.request.CorrelationID,
		}
		var hold aliasHold
		err := a.w.retry(ctx, opRequestAlias, func(ctx context.Context) (err error) {
			hold.reason, hold.until, err = a.enqueuer.RequestAlias(ctx, r, s.state.Version)
			return err
		})
		if err != nil {
			return aliasHold{}, err
		}
		if hold.reason != "" && (held.reason == "" || hold.until.After(held.until)) {
			held = hold
		}
	}
	return held, nil
}

// aliasReason returns the reason of an alias's request. A dead alias needs a fetch that begins after
// the request; a missing or expired alias can come from a fetch in flight.
func aliasReason(r schemas.Reason, dead bool) schemas.Reason {
	if r == schemas.UserRequest || (r.Relaxed() && !dead) {
		return r
	}
	return schemas.Trigger
}

// aliasesUsable reports whether all aliases have content that may still be used.
func (t *task) aliasesUsable() bool {
	for _, s := range t.aliases {
		kept := s.lifetimes.KeepFor == 0 || time.Since(s.state.FetchedAt) < s.lifetimes.KeepFor
		if s.state.NotFound || !s.state.HasContent() || !kept {
			return false
		}
	}
	return true
}

// waitText returns the error text of the status of an entity that waits for its alias.
func (t *task) waitText(dead string, held aliasHold) string {
	text := "waits for facet " + t.aliases[0].From + ", which has the value of {" + t.aliases[0].Param + "}"
	if dead != "" {
		text += "; the upstream did not find the entity with the stored value"
	}
	if held.reason != "" {
		text += "; that facet is not fetched now: " + held.reason
	}
	return text
}

// notFound handles a fetch that did not find the entity with its alias. It reports true if the entity
// now waits for a check of the alias. It reports false if the alias was just checked, or if the entity
// has none: then the entity is not found.
func (a *aliases) notFound(ctx, hard context.Context, at *attempt, o source.Outcome) bool {
	t := at.t
	if (o.Class != source.NotFound && o.Class != source.Handle) || len(t.aliases) == 0 || t.aliasesChecked() {
		return false
	}
	a.w.metrics.aliases.WithLabelValues(aliasDeadCheck).Inc()
	a.wait(ctx, hard, at, t.aliasHash(), at.number)
	return true
}
