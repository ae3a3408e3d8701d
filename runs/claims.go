package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// claimed is a step that a poller has claimed, with the stored data of its entity.
type claimed struct {
	Step
	run   string
	since time.Time // start of the run
	// attemptAt is the start of the run's attempt.
	attemptAt time.Time
	state     State // state of the run

	version    int64 // version of the snapshot; 0 means that nothing is stored
	checkedAt  time.Time
	notFound   bool
	hasContent bool

	failure    store.Status // stored failure of the entity; its State is empty if there is none
	completeAt time.Time    // start of the collection's last complete walk
	walk       collection.Walk
}

// claim claims at most `limit` due steps of a source. The claims last for the duration of the lease or
// longer.
func (r *Runs) claim(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) (steps []claimed, err error) {
	byRun := map[string][]any{}
	var order []string
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		clear(byRun)
		order = nil
		return tx.Query(ctx, func(scan func(...any) error) error {
			var run string
			var number int
			err := scan(&run, &number)
			if byRun[run] == nil {
				order = append(order, run)
			}
			byRun[run] = append(byRun[run], number)
			return err
		}, dueSteps, source, store.ToMicros(now), lease.Microseconds(), limit)
	})
	if err == nil && len(order) > 0 {
		err = r.store.InTx(ctx, func(tx store.Tx) error {
			steps = nil
			for _, run := range order {
				err := tx.Query(ctx, func(scan func(...any) error) error {
					var c claimed
					err := c.scan(scan)
					steps = append(steps, c)
					return err
				}, selectClaimed+placeholders(2, len(byRun[run]))+`) ORDER BY s.no`, append([]any{run}, byRun[run]...)...)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("claim steps of runs of %s: %w", source, err)
	}
	return steps, nil
}

func (c *claimed) scan(scan func(...any) error) error {
	var since, attempt, checked, retry, failed, complete int64
	var encoding, failureState string
	err := scan(&c.run, &c.Number, &c.Facet, &c.Key, &c.Requests, &c.fan.version, &c.fan.item, &since, &attempt, &c.state,
		&c.version, &checked, &c.notFound, &encoding,
		&failureState, &c.failure.Reason, &c.failure.Error, &retry, &failed,
		&complete, &c.walk.ID, &c.walk.Page)
	c.since, c.attemptAt, c.checkedAt, c.completeAt, c.hasContent = store.FromMicros(since), store.FromMicros(attempt), store.FromMicros(checked), store.FromMicros(complete), encoding != ""
	c.failure.State, c.failure.Until, c.failure.UpdatedAt = store.StatusState(failureState), store.FromMicros(retry), store.FromMicros(failed)
	return err
}

// due is a step with its new due time.
type due struct {
	Ref
	number   int
	at       time.Time
	requests int
}

// dueAgain returns the next due time of a step whose claim was no request.
func (c claimed) dueAgain(source string, at time.Time) due {
	return due{Ref{c.run, c.entity(source)}, c.Number, at, c.Requests - 1}
}

// setDue stores the new due times of steps.
func (r *Runs) setDue(ctx context.Context, all []due) error {
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b due) int { return a.compare(b.Ref) })
	statements := make([]store.Statement, len(all))
	for i, d := range all {
		statements[i] = store.Statement{Text: setDue, Args: []any{d.Run, d.number, store.ToMicros(d.at), d.requests}}
	}
	return r.exec(ctx, "set the due times of steps", statements)
}

func (r *Runs) exec(ctx context.Context, what string, statements []store.Statement) error {
	err := r.store.InTx(ctx, func(tx store.Tx) error {
		_, err := tx.Exec(ctx, statements...)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Answered makes steps due now, because the records of their requests are finished. A poller then
// decides whether each step has ended.
func (r *Runs) Answered(ctx context.Context, steps []Ref, now time.Time) error {
	slices.SortFunc(steps, Ref.compare)
	statements := make([]store.Statement, len(steps))
	for i, s := range steps {
		statements[i] = store.Statement{Text: answered, Args: []any{s.Run, s.Entity.Facet, s.Entity.Key, store.ToMicros(now)}}
	}
	return r.exec(ctx, "make steps of runs due", statements)
}

// compare returns the order in which a transaction without a lock of the run locks the rows of steps. All processes use
// it, which prevents deadlocks. collection.Write locks steps in the order of their entities, which is the same order.
func (s Ref) compare(o Ref) int {
	return cmp.Or(cmp.Compare(s.Entity.Facet, o.Entity.Facet), cmp.Compare(s.Entity.Key, o.Entity.Key), cmp.Compare(s.Run, o.Run))
}

// IsOpen reports whether a step is open. If it is not, a worker must not fetch the page of its request.
func (r *Runs) IsOpen(ctx context.Context, s Ref) (open bool, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		open = false
		return tx.Query(ctx, func(scan func(...any) error) error {
			open = true
			var n int
			return scan(&n)
		}, isOpen, s.Run, s.Entity.Facet, s.Entity.Key)
	})
	if err != nil {
		return false, fmt.Errorf("read the step of %s in run %s: %w", s.Entity, s.Run, err)
	}
	return open, nil
}

// StorePage returns the statement that a worker executes in the transaction that stores a page of a
// run. If the statement writes no row, the step is not open, and the transaction must not store the
// page.
func StorePage(s Ref, now time.Time) store.Statement {
	return store.Statement{Text: storePage, Args: []any{s.Run, s.Entity.Facet, s.Entity.Key, store.ToMicros(now)}}
}

// next returns the time of the next work for the runs of a source: the earliest due time of a step or
// deadline of a run. Zero means that there is none.
func (r *Runs) next(ctx context.Context, source string) (at time.Time, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Query(ctx, func(scan func(...any) error) error {
			var step, deadline *int64
			if err := scan(&step, &deadline); err != nil {
				return err
			}
			at = time.Time{}
			for _, us := range []*int64{step, deadline} {
				if us != nil && (at.IsZero() || store.FromMicros(*us).Before(at)) {
					at = store.FromMicros(*us)
				}
			}
			return nil
		}, nextDue, source)
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next due time of the runs of %s: %w", source, err)
	}
	return at, nil
}

// overdue returns runs whose deadline has passed.
func (r *Runs) overdue(ctx context.Context, source string, now time.Time) (ids []string, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		ids = nil
		return tx.Query(ctx, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			ids = append(ids, id)
			return err
		}, selectOverdue, source, store.ToMicros(now))
	})
	return ids, err
}

// schedules returns the stored due times of the scheduled runs, by name. If no time is stored for a
// name, or a time later than `now` plus the interval in `every`, it stores and returns the time that
// `first` returns for the name.
func (r *Runs) schedules(ctx context.Context, source string, now time.Time, every map[string]time.Duration, first func(name string) time.Time) (due map[string]time.Time, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		due = map[string]time.Time{}
		err := tx.Query(ctx, func(scan func(...any) error) error {
			var name string
			var at int64
			err := scan(&name, &at)
			due[name] = store.FromMicros(at)
			return err
		}, selectSchedule, source)
		if err != nil {
			return err
		}
		for name, interval := range every {
			stored, known := due[name]
			switch {
			case !known:
				_, err = one(ctx, tx, insertSchedule, source, name, store.ToMicros(first(name)))
			case stored.After(now.Add(interval)):
				_, err = one(ctx, tx, moveSchedule, source, name, store.ToMicros(stored), store.ToMicros(first(name)))
			default:
				continue
			}
			due[name] = first(name)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the schedule of runs of %s: %w", source, err)
	}
	return due, nil
}

// entity returns the entity of a step.
func (c claimed) entity(source string) schemas.Entity {
	return schemas.Entity{Source: source, Facet: c.Facet, Key: c.Key}
}

// skipSchedule stores the next due time of a scheduled run, without starting a run. It changes nothing
// if another process has changed the time.
func (p *Poller) skipSchedule(ctx context.Context, name string, at scheduled) error {
	return p.runs.store.InTx(ctx, func(tx store.Tx) error {
		_, err := one(ctx, tx, moveSchedule, p.source.Name(), name, store.ToMicros(at.due), store.ToMicros(at.next))
		return err
	})
}
