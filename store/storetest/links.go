package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/store"
)

// linking returns events with one link to each key.
func linking(depth int, keys ...string) (e store.OutboxEvents) {
	for _, key := range keys {
		e.Triggers = append(e.Triggers, store.Trigger{Facet: "layout", Key: key, Depth: depth, Backoff: 100 * 365 * 24 * time.Hour})
	}
	return e
}

// testLinks: if content has changed, its links are stored in one event, in their order. Unchanged
// content and a write that is not stored must store no links.
func testLinks(b suite) {
	first := linking(1, "b/가.xml", "a.xml", `"<&>'`, strings.Repeat("k", 256))
	b.write(one(store.Changed), withOutbox(first, content(entity, 5, "x")))
	b.finish(outboxEvent(entity, 5, "", "x", first))

	b.write(one(store.Touched), withOutbox(linking(1, "c"), content(entity, 6, "x")))
	b.write(one(store.Superseded), withOutbox(linking(1, "c"), content(entity, 4, "y")))
	rewritten := content(entity, 7, "x")
	rewritten.ExtractVersion = 8
	b.write(one(store.Rewritten), withOutbox(linking(1, "c"), rewritten))
	failing := withOutbox(linking(1, "c"), content(entity, 8, "y"))
	failing.ExtractVersion = 8
	failing.Payload = func() (store.Payload, error) { return store.Payload{}, errors.New("no memory") }
	if _, err := b.store.Write(b.Context(), []store.Write{failing}); err == nil {
		b.Fatal("the write without a payload succeeded, want an error")
	}
	b.finish()

	second := linking(10, "c")
	second.PublishChange, second.Triggers = true, append(second.Triggers, both.Triggers...)
	changed := content(entity, 9, "y")
	changed.ExtractVersion = 8
	b.write(one(store.Changed), withOutbox(second, changed))
	b.finish(outboxEvent(entity, 9, "x", "y", second))
}

// testManyLinks: one event can have as many links as one content.
func testManyLinks(b suite) {
	keys := make([]string, 1000)
	for n := range keys {
		keys[n] = fmt.Sprintf("%0256d", n)
	}
	many := linking(2, keys...)
	b.write(one(store.Changed), withOutbox(many, content(entity, 5, "x")))
	b.finish(outboxEvent(entity, 5, "", "x", many))
}
