package producer

import (
	"testing"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

func TestIdempotencyKeys_FindWhatTheSameClientSaved(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	keys, e := NewIdempotencyKeys(rdb), schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}
	if err := keys.Save(t.Context(), "client", e, "k1", 100); err != nil {
		t.Fatal(err)
	}
	find := func(client string, e schemas.Entity, key string, want int64) {
		t.Helper()
		if got, err := keys.Find(t.Context(), client, e, key); err != nil || got != want {
			t.Errorf("%s, %v, %s: got %d, %v, want %d", client, e, key, got, err, want)
		}
	}
	find("client", e, "k1", 100)
	find("client", e, "k2", 0)
	find("other", e, "k1", 0)
	find("client", schemas.Entity{Source: "nexon", Facet: "character", Key: "b"}, "k1", 0)
	server.FastForward(idempotencyTTL)
	find("client", e, "k1", 0)
}
