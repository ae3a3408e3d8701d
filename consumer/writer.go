package consumer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// item is one result that waits to be written.
type item struct {
	task     *task
	write    store.Write
	page     *collection.Write // a page of a collection; nil means that the result is stored as a snapshot
	rejected error             // the database's error if it rejects the content, or the reason for which a page is refused
	written  chan store.Result // buffered channel for one result
	span     trace.Span        // trace span from the submission of the item to its result
}

// maxSettling is how many written batches may be settled while the next batch is written.
const maxSettling = 2

// writer writes results in batches, one batch at a time. Results that arrive during a write form
// the next batch. While a batch is written, the batches before it are settled.
type writer struct {
	w      *Worker
	outbox Outbox
	items  chan *item
	// expected counts the attempts whose call was sent and whose result was not submitted yet.
	expected atomic.Int64
	settling chan struct{} // has an element for each batch that is being settled
	settlers sync.WaitGroup
}

func newWriter(w *Worker, outbox Outbox) *writer {
	return &writer{w: w, outbox: outbox, items: make(chan *item, w.config.MaxBatch), settling: make(chan struct{}, maxSettling)}
}

// submit submits an item and waits for its result. It returns 0 if the context `hard` ended before
// that.
func (wr *writer) submit(hard context.Context, i *item) store.Result {
	select {
	case wr.items <- i:
	case <-hard.Done():
		return 0
	}
	return <-i.written
}

// stop lets run return after all submitted items are written. `submit` must not be called afterwards.
func (wr *writer) stop() { close(wr.items) }

func (wr *writer) run(hard context.Context) {
	for first := range wr.items {
		for _, batch := range batches(wr.collect(first)) {
			settle := wr.write(hard, batch)
			wr.settling <- struct{}{}
			wr.settlers.Go(func() {
				settle()
				<-wr.settling
			})
		}
	}
	wr.settlers.Wait()
}

// collect returns a batch: the item `first`, and further items that arrive within Config.Linger. If no
// sent call is without a result, no item can follow soon, and collect returns at once.
func (wr *writer) collect(first *item) []*item {
	batch := []*item{first}
	linger := time.NewTimer(wr.w.config.Linger)
	defer linger.Stop()
	for len(batch) < wr.w.config.MaxBatch {
		if wr.expected.Load() == 0 && len(wr.items) == 0 {
			return batch
		}
		select {
		case i, ok := <-wr.items:
			if !ok {
				return batch
			}
			batch = append(batch, i)
		case <-linger.C:
			return batch
		}
	}
	return batch
}

// maxPageItems is the maximum number of items in the pages that one transaction writes, unless a single
// page has more.
const maxPageItems = 2000

// batches splits results into batches. Each batch is written in one transaction, and contains either
// snapshots or pages of collections.
func batches(all []*item) (split [][]*item) {
	var snapshots, pages []*item
	n := 0
	for _, i := range all {
		if i.page == nil {
			snapshots = append(snapshots, i)
			continue
		}
		if n += len(i.page.Page.Items); n > maxPageItems && len(pages) > 0 {
			split, pages, n = append(split, pages), nil, len(i.page.Page.Items)
		}
		pages = append(pages, i)
	}
	for _, batch := range [][]*item{snapshots, pages} {
		if len(batch) > 0 {
			split = append(split, batch)
		}
	}
	return split
}

// store stores the results of a batch.
func (wr *writer) store(ctx context.Context, batch []*item) ([]store.Result, error) {
	if batch[0].page != nil {
		return wr.w.walks.write(ctx, batch)
	}
	writes := make([]store.Write, len(batch))
	for n, i := range batch {
		writes[n] = i.write
	}
	return wr.w.db.Write(ctx, writes)
}

// write writes a batch. It returns a function that settles the batch's requests and then marks their
// records as done. A crash between write and settle only repeats a fetch. In the reverse order a
// settled request could be skipped without its result being stored. Records are marked as done last
// for the same reason: the offset of a done record may be committed. Two batches never have the same
// entity, because a record ends before the next record of its entity begins.
func (wr *writer) write(hard context.Context, batch []*item) (settle func()) {
	w := wr.w
	var results []store.Result
	started := time.Now()
	hard, span := w.startBatchSpan(hard, batch)
	var rejected error
	err := w.db.retry(hard, opWrite, func(ctx context.Context) (err error) {
		results, err = wr.store(ctx, batch)
		if errors.Is(err, store.ErrRejected) {
			rejected, err = err, nil // database.retry repeats the write after an error, but the database would reject the repeated write too, so return no error
		}
		return err
	})
	if err == nil && rejected != nil {
		span.End()
		wr.isolate(hard, batch, rejected)
		return func() {}
	}
	w.metrics.batchWritten(len(batch), time.Since(started), results)
	return func() {
		defer span.End()
		wr.settle(hard, batch, results, err)
	}
}

// settle settles the requests of a batch that was written with these results, or with an error.
func (wr *writer) settle(hard context.Context, batch []*item, results []store.Result, err error) {
	w := wr.w
	var ends []schemas.End
	if err == nil {
		follows, woken := false, false
		for n, i := range batch {
			if i.rejected == nil && results[n] != store.BaseMissing {
				ends = append(ends, endOf(i, results[n]))
			}
			woken = woken || (results[n].Stored() && len(i.write.AliasUsers) > 0)
			follows = follows || i.hasEvents(results[n])
		}
		if follows {
			wr.outbox.Notify()
		}
		err = w.settler.settle(hard, ends)
		if woken {
			w.settler.retries.WakeAt(hard, time.Now())
		}
	}
	for n, i := range batch {
		switch {
		case err != nil || i.rejected != nil:
			i.written <- 0
		case results[n] == store.BaseMissing:
			i.written <- store.BaseMissing
		default:
			i.task.finish()
			w.metrics.requestStored(results[n], i.task.request.RequestedAt)
			i.task.traceEnd(results[n].String())
			i.written <- results[n]
		}
	}
}

// isolate writes the items of a rejected batch one by one, so that one rejected item does not
// block the others. The rejected item becomes a dead letter.
func (wr *writer) isolate(hard context.Context, batch []*item, rejected error) {
	if len(batch) == 1 {
		batch[0].rejected = rejected
		batch[0].written <- 0
		return
	}
	for _, i := range batch {
		wr.write(hard, []*item{i})()
	}
}

// hasEvents reports whether outbox events were stored with the item: events of a change, the request of
// the next page, or possibly the request of another walk.
func (i *item) hasEvents(r store.Result) bool {
	return (r == store.Changed && !i.write.Outbox.Empty()) ||
		(i.page != nil && r.Stored() && (i.page.After.Walk.Open() && i.page.Step == nil || i.page.Before.Walk.Open()))
}

// endOf returns the end of a request after the write with result r. If a later fetch is already
// stored, the result is not written, but the request is satisfied too.
func endOf(i *item, r store.Result) schemas.End {
	e := schemas.End{Entity: i.write.Entity, Number: i.write.Version, Satisfied: true}
	if r == store.NotFoundStored {
		e.Hold, e.HoldFor = schemas.HoldNotFound, i.task.facet.NotFoundFor
		if d := i.task.facet.Derived; d != nil {
			e.HoldFor = min(e.HoldFor, d.NotFoundHold())
		}
		if i.write.AliasNotFound {
			e.HoldFor = max(time.Until(i.write.CheckedAt.Add(i.task.facet.AliasNotFoundFor())), time.Millisecond)
		}
	}
	return e
}
