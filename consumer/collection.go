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
	// States returns the states of collections in the given order; the zero value if nothing is stored.
	States(ctx context.Context, all []schemas.Entity) ([]collection.State, error)
	// Write stores pages, and the requests of their next pages, in one transaction. It returns the
	// result of each page, in the order of the pages.
	Write(ctx context.Context, pages []collection.Write) ([]collection.Written, error)
	// Abandon closes the walk with this id if it is open.
	Abandon(ctx context.Context, e schemas.Entity, walk int64) error
}

// walks fetches and stores the pages of collections.
type walks struct {
	w      *Worker
	store  Collections
	states *stateReader
	runs   Runs
}

// taskWalk is the walk of a task's collection, with the page that the task fetches.
type taskWalk struct {
	rules  collection.Rules
	stored collection.Walk  // the walk as it is stored
	before collection.State // state of the collection before this page
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

// load reads the state of a task's collection, and plans the call of its next page. It fails only if
// ctx ends.
func (x *walks) load(ctx context.Context, t *task) error {
	var s collection.State
	// No snapshot was stored when the task was created, so there is no collection. If another process has
	// stored a page since, the write of this page fails, and load reads the state then.
	isNew := t.walk == nil && t.stored.Version == 0 && t.request.Page == ""
	if !isNew {
		err := x.w.db.retry(ctx, opWalk, func(ctx context.Context) (err error) {
			s, err = x.states.read(ctx, t.request.Entity)
			return err
		})
		if err != nil {
			return err
		}
	}
	var err error
	rules := x.rulesOf(t)
	t.walk = &taskWalk{rules: rules, stored: s.Walk, before: s.Begin(rules, time.Now(), t.stored.NotFound)}
	// If baseURL has changed, the stored position of the next page can be outside of it. Then a new
	// walk begins.
	if t.plan, err = planCalls(x.w.source, t); err != nil {
		s.Walk = collection.Walk{}
		t.walk.before = s.Begin(rules, time.Now(), t.stored.NotFound)
		t.plan, err = planCalls(x.w.source, t)
	}
	return err // no other error is possible: the call of the first page was planned before
}

// request fills in the page to fetch, and the ETag for the header If-None-Match.
func (k *taskWalk) request(r *source.Request) {
	w := k.before.Walk
	r.Page = items.PageRequest{Number: w.Page, Position: w.Position, Since: k.before.Since(k.rules)}
	r.Validator = source.Validator{ETag: k.before.Validator(k.rules)}
}

// prepare makes a task of a collection ready for the fetch of its next page. It returns false if no
// fetch follows: another request has fetched the page, the run's step is not open, or ctx ended.
func (x *walks) prepare(ctx context.Context, t *task) bool {
	if x.load(ctx, t) != nil {
		return false
	}
	w, stored := t.walk.before.Walk, t.walk.stored
	end, verdict := schemas.End{Entity: t.request.Entity, Number: t.request.Version, Satisfied: true}, schemas.Satisfied
	if t.request.Page == "" || (w.Open() && w.Name() == t.request.Page) {
		open, err := x.stepOpen(ctx, t)
		if open || err != nil {
			return err == nil
		}
		end.Satisfied, verdict = false, schemas.Cancelled
	}
	// If the page can't be fetched any longer, neither the outbox nor a run may request it again. This
	// is so if no walk is stored, or if the stored walk can't continue because of changed settings or
	// HTTP 404.
	if end.Satisfied && (!stored.Open() || stored.Name() == t.request.Page) && x.abandonWalk(ctx, t, stored.ID) != nil {
		return false
	}
	if x.w.settler.settle(ctx, []schemas.End{end}) == nil {
		x.w.settler.skip(t, verdict)
	}
	return false
}

// read stores the fetched page in k. It returns the outcome of the fetch, unless the link to the next
// page leads back to an earlier page: then it returns an outcome of the class BadContent.
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

// storePage gives the page of an attempt to the writer. It waits until the page is stored, its request
// is settled and its record is marked as done. It returns 0 if the context hard ended before that. It
// returns store.BaseMissing if another page was stored meanwhile: then the caller must read the
// collection again.
func (x *walks) storePage(hard context.Context, a *attempt, f fetched) store.Result {
	defer f.memory.resize(0)
	w, t := x.w, a.t
	k := t.walk
	k.page.Version, k.page.Began = a.number, a.began.Truncate(time.Microsecond) // the databases store times in microseconds
	after, err := k.before.After(k.rules, k.page)
	if err != nil {
		return 0 // not possible: read has called After with the same page
	}
	events := w.outboxEvents(t, nil)
	item := &item{
		task:  t,
		write: store.Write{Entity: t.request.Entity, Version: a.number, CheckedAt: a.began, Outbox: events},
		page: &collection.Write{
			Entity: t.request.Entity, Rules: k.rules, Before: k.before, After: after, Page: k.page, Manual: t.request.Reason.Manual(),
			Params: t.facet.EntityParams(t.params), Outbox: events,
		},
		written: make(chan store.Result, 1),
	}
	item.page.Encode()
	if step, ok := t.step(); ok {
		statement := runs.StorePage(step, time.Now())
		item.page.Step = &statement
	}
	_, item.span = w.tracer.Start(hard, "store")
	a.expectNoResult()
	result := w.writer.submit(hard, item)
	endStoreSpan(item.span, result)
	switch {
	case item.rejected != nil:
		if t.record.Topic != "" { // the call of a confirming run or a probe has no record, so it gets no dead letter
			reason := schemas.Unstorable
			if errors.Is(item.rejected, collection.ErrShrunk) {
				reason = schemas.ParseError
			}
			w.settler.deadLetter(hard, t, failure{reason: reason, err: item.rejected, number: a.number, outcome: f.outcome})
		}
		return store.Superseded
	case result != 0 && result != store.BaseMissing:
		t.stored.Version, t.stored.CheckedAt, t.stored.NotFound = a.number, a.began, false
	}
	return result
}

// write stores the pages of a batch. If the rules of a collection refuse a page, write sets
// item.rejected to the reason.
func (x *walks) write(ctx context.Context, batch []*item) ([]store.Result, error) {
	pages := make([]collection.Write, len(batch))
	for n, i := range batch {
		pages[n] = *i.page
	}
	written, err := x.store.Write(ctx, pages)
	if err != nil {
		return nil, err
	}
	results := make([]store.Result, len(batch))
	for n, i := range batch {
		p := written[n]
		i.rejected = p.Refused
		switch {
		case p.Refused != nil:
			results[n] = store.Superseded
		case p.Result == collection.Moved:
			// This request may also cover the request of the page after the stored one. So it must not
			// end now: it must fetch that page.
			results[n] = store.BaseMissing
		case p.State.Changed == i.page.Page.Version:
			results[n] = store.Changed
		default:
			results[n] = store.Touched
		}
		x.w.metrics.walks.written(*i.page, p)
	}
	return results, nil
}

// abandon closes the walk of a task whose request becomes a dead letter. So the next request begins
// with the first page. The walk of a run stays open, because a retry of the run continues with the
// failed page. It fails only if ctx ends.
func (x *walks) abandon(ctx context.Context, t *task) error {
	if _, ok := t.step(); ok || t.walk == nil || !t.walk.stored.Open() {
		return nil
	}
	return x.abandonWalk(ctx, t, t.walk.stored.ID)
}

// abandonWalk closes the walk with this id. It fails only if ctx ends.
func (x *walks) abandonWalk(ctx context.Context, t *task, walk int64) error {
	err := x.w.db.retry(ctx, opWalk, func(ctx context.Context) error { return x.store.Abandon(ctx, t.request.Entity, walk) })
	if err == nil && walk != 0 {
		x.w.metrics.walks.ended.WithLabelValues(walkAbandoned).Inc()
	}
	return err
}

// fetched completes the result of an attempt that has fetched a page. It also shrinks the memory that
// is reserved for the attempt to the size of the items.
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
