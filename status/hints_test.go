package status

import (
	"testing"

	"github.com/freshet/freshet/servicetest"
)

func TestHints_AreKeptByFacet(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	h := Hints{Redis: rdb, Source: "shop"}
	is := func(facet, want string) {
		t.Helper()
		if got, err := h.ReadHint(t.Context(), facet); err != nil || got != want {
			t.Errorf("hint of %s: got %q, %v, want %q", facet, got, err, want)
		}
	}
	is("product", "")
	if err := h.SaveHint(t.Context(), "product", "product.id"); err != nil {
		t.Fatal(err)
	}
	is("product", "product.id")
	is("price", "")
	if err := h.DeleteHint(t.Context(), "product"); err != nil {
		t.Fatal(err)
	}
	is("product", "")
	if err := h.SaveHint(t.Context(), "price", "price.at"); err != nil {
		t.Fatal(err)
	}
	server.FastForward(hintTTL)
	is("price", "")
	server.Close()
	if _, err := h.ReadHint(t.Context(), "price"); err == nil {
		t.Error("without Redis: got no error, want one")
	}
}
