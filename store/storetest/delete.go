package storetest

import "github.com/freshet/freshet/store"

func testDelete(b bench) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	for range 2 {
		if err := b.store.Delete(b.Context(), entity); err != nil {
			b.Fatal(err)
		}
		testUnknown(b)
	}
	b.write(one(store.Changed), content(entity, 1, "x"))
	b.is(entity, "x", 1, 1, 1, 1)
}
