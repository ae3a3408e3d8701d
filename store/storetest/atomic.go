package storetest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

func testAtomic(b suite) {
	e := func(key string) schemas.Entity { return schemas.Entity{Source: "nexon", Facet: "character", Key: key} }
	b.write([]store.Result{store.Changed, store.NotFoundStored}, content(e("old"), 1, "x"), notFound(e("gone"), 1))
	failing := content(e("b"), 2, "x")
	failing.Payload = func() (store.Payload, error) { return store.Payload{}, errors.New("no memory") }
	_, err := b.store.Write(b.Context(), []store.Write{
		content(e("a"), 2, "x"), failing, content(e("c"), 2, "x"), content(e("old"), 2, "x"), notFound(e("gone"), 2),
	})
	if err == nil || !strings.Contains(err.Error(), "no memory") {
		b.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if _, err := b.store.Get(b.Context(), e(key)); !errors.Is(err, store.ErrNotFound) {
			b.Errorf("%s: %v", key, err)
		}
	}
	b.wantSnapshot(e("old"), "x", 1, 1, 1, 1)
	if v := b.get(e("gone")).Version; v != 1 {
		b.Errorf("not-found result: got version %d, want 1", v)
	}
}

func testCancelled(b suite) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if _, err := b.store.Get(ctx, entity); err == nil || errors.Is(err, store.ErrNotFound) {
		b.Errorf("Get: %v", err)
	}
	if _, err := b.store.GetAll(ctx, []schemas.Entity{entity}); err == nil {
		b.Error("GetAll: got no error, want one")
	}
	if _, err := b.store.Write(ctx, []store.Write{content(entity, 5, "x")}); err == nil {
		b.Error("Write: got no error, want one")
	}
	if _, err := b.store.Setting(ctx, "nexon"); err == nil {
		b.Error("Setting: got no error, want one")
	}
	if _, err := b.store.Used(ctx, "nexon", "day"); err == nil {
		b.Error("Used: got no error, want one")
	}
	if setting, entry := change("nexon", 1); b.store.ChangeSetting(ctx, setting, entry) == nil {
		b.Error("ChangeSetting: got no error, want one")
	}
	l := newDeadLetter(entity, 1)
	if b.store.WriteFailure(ctx, failing(entity, 5), &l) == nil {
		b.Error("WriteFailure: got no error, want one")
	}
	if _, err := b.store.Statuses(ctx, []schemas.Entity{entity}); err == nil {
		b.Error("Statuses: got no error, want one")
	}
	if _, err := b.store.NextRetryTime(ctx, "nexon"); err == nil {
		b.Error("NextRetryTime: got no error, want one")
	}
	if _, err := b.store.DeadLetters(ctx, deadletters.Filter{Source: "nexon"}, deadletters.DeadLetter{}, 1); err == nil {
		b.Error("DeadLetters: got no error, want one")
	}
	b.hasNoStatus(entity)
	b.fail(failing(entity, 5))
	b.deadLetter(l)
	if _, err := b.store.ClaimRetries(ctx, "nexon", at(9), time.Second, 1); err == nil {
		b.Error("ClaimRetries: got no error, want one")
	}
	if err := b.store.CreateJob(ctx, job(1), auditEntry("a")); err == nil {
		b.Error("CreateJob: got no error, want one")
	}
	b.hasStatus(failing(entity, 5))
	if all := b.deadLetters("nexon", true, 9); len(all) != 1 {
		b.Errorf("dead letters: got %+v", all)
	}
	testUnknown(b)
}
