package sqlite_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

// A fetch that returns the stored content is Touched: only times and version are written.
func ExampleStore_Write() {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, "") // without a path, the database is in memory
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()

	content := []byte(`{"level":1}`)
	fetch := func(version int64) store.Write {
		return store.Write{
			Entity:    schemas.Entity{Source: "nexon", Facet: "character", Key: "anna"},
			Version:   version,
			CheckedAt: time.UnixMicro(version),
			Hash:      sha256.Sum256(content),
			Payload:   func() (store.Payload, error) { return store.Encode(content), nil },
		}
	}
	fmt.Println(db.Write(ctx, []store.Write{fetch(7)}))
	fmt.Println(db.Write(ctx, []store.Write{fetch(8)}))
	content = []byte(`{"level":2}`)
	fmt.Println(db.Write(ctx, []store.Write{fetch(9)}))
	fmt.Println(db.Write(ctx, []store.Write{fetch(6)})) // a late result of an earlier fetch is not stored
	// Output:
	// [changed] <nil>
	// [touched] <nil>
	// [changed] <nil>
	// [superseded] <nil>
}
