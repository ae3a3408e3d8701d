package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/links"
	"github.com/freshet/freshet/store"
)

// content is the extracted content of an entity, ready to be stored.
type content struct {
	hash           store.Hash
	extractVersion int64
	payload        func() (store.Payload, error)
	bytes          int // bytes that this content occupies in memory until it is written
	links          links.Found
}

// hasStored reports whether the content was stored before this fetch, as far as the worker knows.
func (t *task) hasStored(c *source.Content) bool {
	return t.stored.HasContent() && t.stored.Hash == c.Hash && t.stored.ExtractVersion == c.ExtractVersion
}

// newContent prepares c for the write, and then releases c. Content that is probably stored already
// is not encoded; if the store needs it after all, it is parsed again from the compressed answers.
// Other content is encoded at once, so that the answers can be freed.
func (w *Worker) newContent(ctx context.Context, t *task, answers *source.Responses, c *source.Content) content {
	defer c.Release()
	// The links are needed even if the content is probably stored already. The snapshot can be deleted
	// before the write. Then the content counts as new, and its links are stored with it.
	made := content{hash: c.Hash, extractVersion: c.ExtractVersion, links: linksIn(w.source, t, c.Bytes)}
	if t.hasStored(c) {
		w.hints.recordUnchanged(ctx, w.base, t)
		made.bytes = answers.Bytes()
		made.payload = func() (store.Payload, error) {
			o := w.source.Read(answers, time.Now())
			if o.Class != source.OK {
				return store.Payload{}, fmt.Errorf("content could not be parsed a second time: %w", o.Err)
			}
			defer o.Content.Release()
			return payloadOf(o.Content), nil
		}
		return made
	}
	if c.MediaType == "" && t.stored.HasContent() && t.stored.ExtractVersion == c.ExtractVersion && !t.stored.NotFound {
		w.hints.recordChanged(ctx, w.db, t, c.Bytes)
	}
	p := payloadOf(c)
	made.bytes = len(p.Bytes)
	made.payload = func() (store.Payload, error) { return p, nil }
	return made
}

// payloadOf encodes content.
func payloadOf(c *source.Content) store.Payload {
	p := store.Encode(c.Bytes)
	p.MediaType = c.MediaType
	return p
}

// storeResult submits a result to the writer and waits until the result is written, its request is
// settled and its record is marked as done. It returns 0 if the context `hard` ended before that.
func (w *Worker) storeResult(hard context.Context, a *attempt, f fetched) store.Result {
	if f.outcome.Page != nil {
		return w.walks.storePage(hard, a, f)
	}
	if f.memory != nil { // f.memory is nil if nothing was fetched
		defer f.memory.resize(0)
	}
	t := a.t
	item := &item{
		task: t,
		write: store.Write{
			Entity: t.request.Entity, Version: a.number, CheckedAt: a.began,
			Hash: f.content.hash, ExtractVersion: f.content.extractVersion, Payload: f.content.payload,
			ETag: f.outcome.Validator.ETag, LastModified: f.outcome.Validator.LastModified,
			Visibility: w.source.Visibility(t.request.Entity.Key),
			Manual:     t.request.Reason.Manual(),
			Outbox:     w.outboxEvents(t, f.content.links.Keys),
			Aliases:    t.aliasStates(), AliasUsers: t.facet.AliasUsers(), AliasNotFound: f.aliasNotFound,
		},
		written: make(chan store.Result, 1),
	}
	switch f.outcome.Class { //nolint:exhaustive // decide stores no result of another class; OK needs no change of the item
	case source.NotFound, source.Handle:
		item.write.Kind = store.KindNotFound
	case source.NotModified:
		item.write.Kind = store.NotModified
		item.write.Hash, item.write.ExtractVersion = t.stored.Hash, t.stored.ExtractVersion
		item.write.ETag, item.write.LastModified = t.stored.ETag, t.stored.LastModified
	}
	_, item.span = w.tracer.Start(hard, "store")
	a.expectNoResult() // must precede submit; otherwise, the writer could wait for the result of this fetch, which it has already got
	result := w.writer.submit(hard, item)
	endStoreSpan(item.span, result)
	if result != 0 && result != store.BaseMissing && result != store.Superseded {
		t.stored.Version, t.stored.CheckedAt = a.number, a.began // the entity's next record gets t.stored from entityQueues.leave, so it must describe the new snapshot
	}
	if result == store.Changed {
		w.metrics.linksFound(f.content.links, t.followsLinks())
	}
	if item.rejected != nil && t.record.Topic != "" { // a confirming call or a probe belongs to no record (the topic is empty), so it causes no dead letter
		w.settler.deadLetter(hard, t, failure{reason: schemas.Unstorable, err: item.rejected, number: a.number, outcome: f.outcome})
	}
	return result
}

// outboxEvents returns the events to store if the entity's content has changed. A trigger carries
// the request's params for which its target facet has no value in the configuration. A changed alias
// triggers the facets that use it. An input of a derived facet triggers the entity that is computed from it. The
// keys of links trigger their entities.
func (b *base) outboxEvents(t *task, keys []string) store.OutboxEvents {
	e := store.OutboxEvents{PublishChange: t.facet.PublishChanges}
	for _, trigger := range b.config.Triggers[t.request.Facet] {
		other, _ := b.source.Facet(trigger.Facet)
		trigger.Params = other.EntityParams(t.params)
		e.Triggers = append(e.Triggers, trigger)
	}
	for _, user := range t.facet.AliasUsers() {
		other, _ := b.source.Facet(user)
		e.Triggers = append(e.Triggers, store.Trigger{Facet: user, OnReplace: true, Params: other.EntityParams(t.params)})
	}
	for _, c := range t.facet.Computed(t.request.Key) {
		if schemas.CheckKey(c.Key) == nil && b.source.CheckKey(c.Facet, c.Key) == nil {
			e.Triggers = append(e.Triggers, store.Trigger{Facet: c.Facet, Key: c.Key, Every: c.Every})
		}
	}
	e.Triggers = append(e.Triggers, linkTriggers(b.source, t, keys)...)
	return e
}
