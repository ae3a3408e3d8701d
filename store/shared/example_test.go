package shared_test

import (
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// A batch keeps one write per entity: the one with the highest version.
func ExampleNewBatch() {
	a := schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}
	b := schemas.Entity{Source: "nexon", Facet: "character", Key: "b"}
	batch := shared.NewBatch([]store.Write{{Entity: b, Version: 1}, {Entity: a, Version: 6}, {Entity: a, Version: 7}})
	for i, w := range batch.Writes {
		fmt.Println(w.Entity.Key, w.Version)
		batch.Results[i] = store.Changed // a database would set this result
	}
	fmt.Println(batch.InOrder())
	// Output:
	// a 7
	// b 1
	// [changed superseded changed] <nil>
}
