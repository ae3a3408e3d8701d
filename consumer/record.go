package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// record hands what was found to the writer and waits until it is written,
// settled and done; 0 if hard ended first.
func (w *Worker) record(hard context.Context, a *attempt, f fetched) store.Result {
	defer func() { w.bytes.Release(f.held) }()
	t := a.t
	item := &item{
		task: t,
		write: store.Write{
			Entity: t.request.Entity, Version: a.number, CheckedAt: a.began,
			ETag: f.outcome.Validator.ETag, LastModified: f.outcome.Validator.LastModified,
		},
		written: make(chan store.Result, 1),
	}
	switch f.outcome.Class {
	case source.Absent:
		item.write.Kind = store.Absence
	case source.NotModified:
		item.write.Kind = store.NotModified
		item.write.Hash, item.write.ExtractVersion = t.stored.Hash, t.stored.ExtractVersion
		item.write.ETag, item.write.LastModified = t.stored.ETag, t.stored.LastModified
	default:
		w.content(&item.write, t, f)
	}
	return w.writer.submit(hard, item)
}

// content completes a write of content. Content that is probably stored already
// is not encoded: should the store want it after all, it is read once more from
// the answers, which wait compressed. Other content is encoded at once, and the
// answers may go.
func (w *Worker) content(to *store.Write, t *task, f fetched) {
	c := f.outcome.Content
	to.Hash, to.ExtractVersion = c.Hash, c.ExtractVersion
	if t.stored.HasContent() && t.stored.Hash == c.Hash && t.stored.ExtractVersion == c.ExtractVersion {
		c.Release()
		to.Payload = func() (store.Payload, error) {
			o := w.source.Read(f.answers, time.Now())
			if o.Class != source.OK {
				return store.Payload{}, fmt.Errorf("content could be read once and not again: %w", o.Err)
			}
			defer o.Content.Release()
			return store.Encode(o.Content.JSON), nil
		}
		return
	}
	w.cpu <- struct{}{}
	p := store.Encode(c.JSON)
	<-w.cpu
	c.Release()
	to.Payload = func() (store.Payload, error) { return p, nil }
}
