package consumer

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// item is one result that waits to be written.
type item struct {
	task     *task
	write    store.Write
	rejected error             // the database's error, if it rejects the content
	written  chan store.Result // buffered channel for one result
	span     trace.Span        // covers the time from submit to the result
}

// writer writes results in batches, one batch at a time. Results that arrive during a write form
// the next batch.
type writer struct {
	w     *Worker
	items chan *item
}

func newWriter(w *Worker) *writer {
	return &writer{w: w, items: make(chan *item, w.config.MaxBatch)}
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

// stop lets run return after all submitted items are written. submit must not be called
// afterwards.
func (wr *writer) stop() { close(wr.items) }

func (wr *writer) run(hard context.Context) {
	for first := range wr.items {
		wr.flush(hard, wr.collect(first))
	}
}

// collect returns a batch: the item `first`, and further items that arrive within Config.Linger.
func (wr *writer) collect(first *item) []*item {
	batch := []*item{first}
	linger := time.NewTimer(wr.w.config.Linger)
	defer linger.Stop()
	for len(batch) < wr.w.config.MaxBatch {
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

// flush writes a batch, then settles its requests, then marks their records as done. A crash
// between write and settle only repeats a fetch. In the reverse order a settled request could be
// skipped without its result being stored. Records are marked as done last for the same reason: the
// offset of a done record may be committed.
func (wr *writer) flush(hard context.Context, batch []*item) {
	w := wr.w
	writes := make([]store.Write, len(batch))
	for n, i := range batch {
		writes[n] = i.write
	}
	var results []store.Result
	started := time.Now()
	hard, span := w.startBatchSpan(hard, batch)
	defer span.End()
	var rejected error
	err := w.retryDB(hard, opWrite, func(ctx context.Context) (err error) {
		results, err = w.store.Write(ctx, writes)
		if errors.Is(err, store.ErrRejected) {
			rejected, err = err, nil // retryDB repeats the write after an error, but the database would reject the repeated write too, so return no error
		}
		return err
	})
	if err == nil && rejected != nil {
		wr.isolate(hard, batch, rejected)
		return
	}
	w.metrics.batchWritten(len(batch), time.Since(started), results)
	var ends []schemas.End
	if err == nil {
		follows, woken := false, false
		for n, i := range batch {
			if results[n] != store.BaseMissing {
				ends = append(ends, endOf(i, results[n]))
			}
			woken = woken || (results[n].Stored() && len(i.write.AliasUsers) > 0)
			follows = follows || (results[n] == store.Changed && !i.write.Outbox.Empty())
		}
		if follows {
			w.outbox.Notify()
		}
		err = w.settle(hard, ends)
		if woken {
			w.retries.WakeAt(hard, time.Now())
		}
	}
	for n, i := range batch {
		switch {
		case err != nil:
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
		wr.flush(hard, []*item{i})
	}
}

// endOf returns the end of a request after the write with result r. If a later fetch is already
// stored, the result is not written, but the request is satisfied too.
func endOf(i *item, r store.Result) schemas.End {
	e := schemas.End{Entity: i.write.Entity, Number: i.write.Version, Satisfied: true}
	if r == store.AbsenceStored {
		e.Hold, e.HoldFor = schemas.HoldAbsent, i.task.facet.NotFoundFor
		if i.write.AliasAbsent {
			e.HoldFor = max(time.Until(i.write.CheckedAt.Add(i.task.facet.AliasNotFoundFor())), time.Millisecond)
		}
	}
	return e
}
