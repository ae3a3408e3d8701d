package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/store"
)

// Collections reads and writes collections.
type Collections interface {
	// State returns the state of a collection; the zero value if nothing is stored.
	State(ctx context.Context, e schemas.Entity) (collection.State, error)
	// Write stores a page and the request of the next page in one transaction. after is the state after
	// the page. It returns the state that was stored.
	Write(ctx context.Context, w collection.Write, after collection.State) (collection.State, collection.Result, error)
	// Abandon closes an open walk.
	Abandon(ctx context.Context, e schemas.Entity, walk int64) error
}

// walks fetches and stores the pages of collections.
type walks struct {
	w     *Worker
	store Collections
	runs  Runs
}

// taskWalk is the open walk of a task's collection.
type taskWalk struct {
	rules  collection.Rules
	before collection.State // the state before the page that the task fetches
	page   collection.Page
}

// rulesOf returns the rules of a task's collection.
func (x *walks) rulesOf(t *task) collection.Rules {
	c := t.facet.Collection
	r := collection.Rules{
		Order: cmp.Or(c.Order, collection.OrderNone), Deletes: cmp.Or(c.Deletes, collection.DeletesNone), FullEvery: c.FullEvery,
		Keep: c.Keep, MaxItems: int64(c.MaxItems),
		ShrinkGuard: t.facet.ShrinkGuard, Conditional: t.facet.Conditional,
		ExtractVersion: t.plan.ExtractVersion(), Visibility: x.w.source.Visibility(t.request.Key),
	}
	if c.Cursor != nil {
		r.HasCursor, r.Lookback = true, c.Cursor.Lookback
	}
	return r
}

// load reads the collection of a task, and plans the call of its next page. It fails only if ctx ends.
func (x *walks) load(ctx context.Context, t *task) error {
	var s collection.State
	err := x.w.retryDB(ctx, opWalk, func(ctx context.Context) (err error) {
		s, err = x.store.State(ctx, t.request.Entity)
		return err
	})
	if err != nil {
		return err
	}
	rules := x.rulesOf(t)
	t.walk = &taskWalk{rules: rules, before: s.Begin(rules, time.Now(), t.stored.NotFound)}
	if t.plan, err = x.w.planFor(t); err != nil { // the position of the next page can be outside of a changed baseURL: begin a new walk
		s.Walk = collection.Walk{}
		t.walk.before = s.Begin(rules, time.Now(), t.stored.NotFound)
		t.plan, err = x.w.planFor(t)
	}
	return err // no error can happen here: the call of the first page was planned before
}

// request sets the page of the walk, and its validator, in a source.Request.
func (k *taskWalk) request(r *source.Request) {
	w := k.before.Walk
	r.Page = items.PageRequest{Number: w.Page, Position: w.Position, Since: k.before.Since(k.rules)}
	r.Validator = source.Validator{ETag: k.before.Validator(k.rules)}
}

// prepare makes a task of a collection ready for the fetch of its next page. It reports false if no fetch
// follows: another request has fetched the page, or ctx ended.
func (x *walks) prepare(ctx context.Context, t *task) bool {
	if x.load(ctx, t) != nil {
		return false
	}
	w := t.walk.before.Walk
	end, verdict := schemas.End{Entity: t.request.Entity, Number: t.request.Version, Satisfied: true}, schemas.Satisfied
	if t.request.Page == "" || (w.Open() && w.Name() == t.request.Page) {
		open, err := x.stepOpen(ctx, t)
		if open || err != nil {
			return err == nil
		}
		end.Satisfied, verdict = false, schemas.Cancelled
	}
	if x.w.settle(ctx, []schemas.End{end}) == nil {
		x.w.skip(t, verdict)
	}
	return false
}

// read sets the page of the walk from the outcome of a fetch. It returns the outcome, or one with the class
// BadContent if the next page is an earlier page of the walk.
func (k *taskWalk) read(o source.Outcome, began time.Time) source.Outcome {
	k.page = collection.Page{
		Began: began, Date: o.Page.Date, NotModified: o.Class == source.NotModified, ETag: o.Validator.ETag, Next: o.Page.Next,
		Items: make([]collection.Fetched, len(o.Page.Items)),
	}
	for n, i := range o.Page.Items {
		k.page.Items[n] = collection.Fetched{ID: i.ID, Hash: i.Hash, Content: i.Content, Cursor: i.Cursor, Deleted: i.Deleted}
	}
	if _, err := k.before.After(k.rules, k.page); err != nil {
		return source.Outcome{Class: source.BadContent, Status: o.Status, Permit: o.Permit, Err: fmt.Errorf("page %d: %w", k.before.Walk.Page, err)}
	}
	return o
}

// storePage stores the page of an attempt, settles its request and marks its record as done. It returns
// 0 if the context `hard` ended before that.
func (x *walks) storePage(hard context.Context, a *attempt, f fetched) store.Result {
	defer f.memory.resize(0)
	w, t := x.w, a.t
	t.walk.page.Version, t.walk.page.Began = a.number, a.began.Truncate(time.Microsecond) // the databases store microseconds
	after, err := t.walk.before.After(t.walk.rules, t.walk.page)
	if err != nil {
		return 0 // impossible: read has called After with the same page
	}
	write := collection.Write{
		Entity: t.request.Entity, Rules: t.walk.rules, Before: t.walk.before, Page: t.walk.page, Manual: t.request.Reason.Manual(),
		Params: t.facet.EntityParams(t.params), Outbox: w.outboxEventsOf(t, nil),
	}
	if step, ok := t.step(); ok {
		statement := runs.StorePage(step, time.Now())
		write.Step = &statement
	}
	a.expectNoResult()
	var stored collection.State
	var result collection.Result
	var refused error
	err = w.retryDB(hard, opWrite, func(ctx context.Context) (err error) {
		stored, result, err = x.store.Write(ctx, write, after)
		if errors.Is(err, collection.ErrShrunk) || errors.Is(err, store.ErrRejected) {
			refused, err = err, nil // the repeated write would be refused too
		}
		return err
	})
	switch {
	case err != nil:
		return 0
	case refused != nil:
		if t.record.Topic != "" { // a confirming call or a probe belongs to no record
			reason := schemas.Unstorable
			if errors.Is(refused, collection.ErrShrunk) {
				reason = schemas.ParseError
			}
			w.deadLetter(hard, t, failure{reason: reason, err: refused, number: a.number, outcome: f.outcome})
		}
		return store.Superseded
	}
	r := store.Touched
	switch {
	case result == collection.Moved:
		r = store.Superseded
	case stored.Changed == a.number:
		r = store.Changed
	}
	if result == collection.Stored && (stored.Walk.Open() && write.Step == nil || write.Before.Walk.Open() || (r == store.Changed && !write.Outbox.Empty())) {
		w.outbox.Notify()
	}
	if w.settle(hard, []schemas.End{{Entity: t.request.Entity, Number: a.number, Satisfied: true}}) != nil {
		return 0
	}
	if result == collection.Stored {
		t.stored.Version, t.stored.CheckedAt, t.stored.NotFound = a.number, a.began, false
	}
	t.finish()
	w.metrics.requestStored(r, t.request.RequestedAt)
	t.traceEnd(r.String())
	return r
}

// abandon closes the walk of a task whose request becomes a dead letter, so that the next request begins
// with the first page. The walk of a run stays open: a retry of the run continues with the failed page. It fails
// only if ctx ends.
func (x *walks) abandon(ctx context.Context, t *task) error {
	if _, ok := t.step(); ok || t.walk == nil || !t.walk.before.Walk.Open() {
		return nil
	}
	return x.w.retryDB(ctx, opWalk, func(ctx context.Context) error {
		return x.store.Abandon(ctx, t.request.Entity, t.walk.before.Walk.ID)
	})
}

// fetched completes the result of an attempt that has fetched a page. From then on, its
// memory reservation has the size of the items.
func (x *walks) fetched(ctx context.Context, a *attempt, f fetched) fetched {
	f.outcome = a.t.walk.read(f.outcome, a.began)
	reportCalls(ctx, x.w, a, f.outcome.Class, f.outcome.Class == source.OK && len(a.t.walk.page.Items) > 0, a.t.calls-f.calls)
	n := 0
	if f.outcome.Page != nil {
		n = f.outcome.Page.Bytes()
	}
	f.memory.resize(int64(n))
	return f
}
