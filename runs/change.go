package runs

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// change is an open transaction that has locked one run and changes its steps.
type change struct {
	tx  store.Tx
	now time.Time
	run Run
}

// lock locks the run and reads it. It fails with ErrNotFound if there is no such run.
func (c *change) lock(ctx context.Context, id string) error {
	found, err := one(ctx, c.tx, lockRun, id, store.ToMicros(c.now))
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return err
	}
	c.run, _, err = read(ctx, c.tx, id)
	return err
}

// read returns the run with this id. `found` is false if there is none.
func read(ctx context.Context, tx store.Tx, id string) (run Run, found bool, err error) {
	err = tx.Query(ctx, func(scan func(...any) error) error {
		found = true
		return run.scan(scan)
	}, selectRun, id)
	return run, found, err
}

// change locks the run with this id, and calls `do` in the same transaction. If the run has ended, it
// does not call `do`. It returns the run after the change.
func (r *Runs) change(ctx context.Context, id string, now time.Time, do func(*change) error) (run Run, err error) {
	now = now.Truncate(time.Microsecond)
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		c := &change{tx: tx, now: now}
		err := c.lock(ctx, id)
		if err == nil && !c.run.Ended() {
			err = do(c)
		}
		run = c.run
		return err
	})
	if err != nil {
		return Run{}, fmt.Errorf("change run %s: %w", id, err)
	}
	return run, nil
}

// End ends open steps of a run. Steps that have ended already are ignored. If no step is open
// afterwards, the same transaction ends the run. It returns the run after the change.
func (r *Runs) End(ctx context.Context, id string, ends []StepEnd, now time.Time) (Run, error) {
	return r.change(ctx, id, now, func(c *change) error {
		if err := c.end(ctx, ends); err != nil {
			return err
		}
		return c.finish(ctx)
	})
}

// end ends the given steps, and changes the run's counters in memory. It does not write the counters.
func (c *change) end(ctx context.Context, ends []StepEnd) error {
	statements := make([]store.Statement, len(ends))
	for i, e := range ends {
		statements[i] = store.Statement{Text: endStep, Args: []any{c.run.ID, e.Number, string(e.State), store.ToMicros(c.now), cut(e.Error, maxErrorBytes)}}
	}
	written, err := c.tx.Exec(ctx, statements...)
	if err != nil {
		return err
	}
	for i, e := range ends {
		if written[i] == 0 {
			continue
		}
		c.run.started--
		c.run.Counts.Open--
		c.run.Counts.add(e.State, 1)
	}
	return nil
}

func (c *Counts) add(s StepState, n int) {
	switch s {
	case StepDone:
		c.Done += n
	case StepNotFound:
		c.NotFound += n
	case StepFailed:
		c.Failed += n
	case StepCancelled:
		c.Cancelled += n
	case StepOpen:
		c.Open += n
	}
}

// finish is the last part of a change. It makes further steps due, or ends the run if no step is open,
// and writes the counters.
func (c *change) finish(ctx context.Context) error {
	if c.run.Counts.Open > 0 {
		if err := c.startSteps(ctx); err != nil {
			return err
		}
		c.run.UpdatedAt = c.now
		_, err := c.tx.Exec(ctx, c.run.update())
		return err
	}
	state := Completed
	if c.run.Definition.failed(c.run.Counts.Failed, c.run.Counts.Total) || c.run.Error != "" {
		state = Failed
	}
	return c.endRun(ctx, state)
}

// startSteps makes further steps due. At most Definition.Parallel steps of the run are requested at the
// same time.
func (c *change) startSteps(ctx context.Context) error {
	free := c.run.Definition.Parallel - c.run.started
	if free <= 0 || c.run.lastStarted >= c.run.Counts.Total {
		return nil
	}
	var next []int
	err := c.tx.Query(ctx, func(scan func(...any) error) error {
		var n int
		err := scan(&n)
		next = append(next, n)
		return err
	}, selectWaiting, c.run.ID, c.run.lastStarted, free)
	if err != nil || len(next) == 0 {
		return err
	}
	statements := make([]store.Statement, len(next))
	for i, n := range next {
		statements[i] = store.Statement{Text: startStep, Args: []any{c.run.ID, n, store.ToMicros(c.now)}}
	}
	c.run.started += len(next)
	c.run.lastStarted = next[len(next)-1]
	_, err = c.tx.Exec(ctx, statements...)
	return err
}

// endRun ends the run with the given state, stores the event of its end, and starts the run of the same
// scope that waits for this end.
func (c *change) endRun(ctx context.Context, state State) error {
	c.run.State, c.run.Waiting, c.run.started = state, false, 0
	c.run.UpdatedAt, c.run.EndedAt = c.now, c.now
	event, err := c.event(ctx)
	if err != nil {
		return err
	}
	if _, err := c.tx.Exec(ctx, c.run.update(), event); err != nil {
		return err
	}
	return c.startWaiting(ctx)
}

// startWaiting starts the run of the same scope that waits for the end of this run. It does nothing if
// no run waits.
func (c *change) startWaiting(ctx context.Context) error {
	var waiting Run
	err := c.tx.Query(ctx, func(scan func(...any) error) error { return waiting.scan(scan) }, selectScope, c.run.Source, c.run.Name, c.run.Scope)
	if err != nil || waiting.ID == "" {
		return err
	}
	next := &change{tx: c.tx, now: c.now}
	if err := next.lock(ctx, waiting.ID); err != nil || next.run.Ended() || !next.run.Waiting {
		return err
	}
	next.run.Waiting, next.run.Since, next.run.AttemptAt, next.run.Deadline = false, c.now, c.now, c.now.Add(next.run.Definition.Deadline)
	return next.finish(ctx)
}

// maxFailures is the maximum number of failed steps in the event of a run's end.
const maxFailures = 100

// event returns the statement that writes the event of the run's end into the outbox.
func (c *change) event(ctx context.Context) (store.Statement, error) {
	r := c.run
	e := schemas.RunEvent{
		ID: r.ID, Source: r.Source, Name: r.Name, Scope: r.Scope, Attempt: r.Attempt, State: string(r.State), Error: r.Error,
		StartedAt: r.AttemptAt, EndedAt: r.EndedAt,
		Steps: schemas.RunSteps{Total: r.Counts.Total, Done: r.Counts.Done, NotFound: r.Counts.NotFound, Failed: r.Counts.Failed, Cancelled: r.Counts.Cancelled},
	}
	err := c.tx.Query(ctx, func(scan func(...any) error) error {
		var s Step
		err := s.scan(scan)
		e.Failures = append(e.Failures, schemas.RunFailure{Facet: s.Facet, Key: s.Key, Error: s.Error})
		return err
	}, selectFailures, r.ID, maxFailures)
	if err != nil {
		return store.Statement{}, err
	}
	_, value, err := e.Encode()
	return store.Statement{Text: insertEvent, Args: []any{r.Source, r.ID, r.Attempt, store.ToMicros(c.now), []byte{}, string(value)}}, err
}

// Cancel cancels a run: it ends the open steps and the run. Data that the run has fetched stays stored.
func (r *Runs) Cancel(ctx context.Context, id string, now time.Time) (run Run, err error) {
	now = now.Truncate(time.Microsecond)
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		c := &change{tx: tx, now: now}
		err := c.cancel(ctx, id)
		run = c.run
		return err
	})
	if err != nil {
		return Run{}, fmt.Errorf("cancel run %s: %w", id, err)
	}
	return run, nil
}

func (c *change) cancel(ctx context.Context, id string) error {
	if err := c.lock(ctx, id); err != nil {
		return err
	}
	if c.run.Ended() {
		return fmt.Errorf("%w with the state %s", ErrEnded, c.run.State)
	}
	if err := c.endOpen(ctx, StepCancelled, ""); err != nil {
		return err
	}
	return c.endRun(ctx, Cancelled)
}

// endOpen ends all open steps.
func (c *change) endOpen(ctx context.Context, state StepState, why string) error {
	written, err := c.tx.Exec(ctx, store.Statement{Text: endOpenSteps, Args: []any{c.run.ID, string(state), store.ToMicros(c.now), why}})
	if err == nil {
		c.run.Counts.Open -= int(written[0])
		c.run.Counts.add(state, int(written[0]))
	}
	return err
}

// expire fails the open steps of a run whose deadline has passed.
func (r *Runs) expire(ctx context.Context, id string, now time.Time) (Run, error) {
	return r.change(ctx, id, now, func(c *change) error {
		if c.run.Waiting || c.run.Deadline.After(c.now) {
			return nil
		}
		c.run.Error = fmt.Sprintf("the deadline of %v has passed", c.run.Definition.Deadline)
		if err := c.endOpen(ctx, StepFailed, "the deadline of the run has passed"); err != nil {
			return err
		}
		return c.endRun(ctx, Failed)
	})
}

// Retry begins the next attempt of an ended run: it opens the failed steps again.
func (r *Runs) Retry(ctx context.Context, id string, now time.Time) (run Run, err error) {
	now = now.Truncate(time.Microsecond)
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		c := &change{tx: tx, now: now}
		err := c.retry(ctx, id)
		run = c.run
		return err
	})
	if err != nil {
		return Run{}, fmt.Errorf("retry run %s: %w", id, err)
	}
	return run, nil
}

func (c *change) retry(ctx context.Context, id string) error {
	if err := c.lock(ctx, id); err != nil {
		return err
	}
	if !c.run.Ended() || c.run.State == Cancelled || c.run.Counts.Failed == 0 {
		return fmt.Errorf("%w: its state is %s, and %d steps have failed", ErrNoFailedStep, c.run.State, c.run.Counts.Failed)
	}
	active := false
	err := c.tx.Query(ctx, func(scan func(...any) error) error {
		active = true
		return (&Run{}).scan(scan)
	}, selectScope, c.run.Source, c.run.Name, c.run.Scope)
	if err != nil {
		return err
	}
	if active {
		return ErrActive
	}
	var first []Step
	err = c.tx.Query(ctx, func(scan func(...any) error) error {
		var s Step
		err := s.scan(scan)
		first = append(first, s)
		return err
	}, selectFailures, id, 1)
	if err != nil {
		return err
	}
	if len(first) == 0 {
		return fmt.Errorf("%w: its counters do not match its steps; run `freshet runs verify`", ErrNoFailedStep)
	}
	written, err := c.tx.Exec(ctx, store.Statement{Text: reopenSteps, Args: []any{id}})
	if err != nil {
		return err
	}
	n := int(written[0])
	c.run.Counts.Failed -= n
	c.run.Counts.Open += n
	c.run.State, c.run.Error, c.run.EndedAt, c.run.Attempt = Running, "", time.Time{}, c.run.Attempt+1
	c.run.AttemptAt, c.run.Deadline = c.now, c.now.Add(c.run.Definition.Deadline)
	c.run.started, c.run.lastStarted = 0, first[0].Number-1
	return c.finish(ctx)
}
