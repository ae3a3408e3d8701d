package main

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

// contents is how many different ones are stored: more would only take longer to make.
const contents = 128

// stored are snapshots of a facet under prefix0, prefix1 and so on, checked at a time.
type stored struct {
	facet   string
	prefix  string
	count   int
	checked time.Time
}

// seed stores snapshots as a worker would, past the workers.
func (s *site) seed(ctx context.Context, all ...stored) error {
	db, err := postgres.Open(ctx, s.database)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, some := range all {
		made, err := contentsOf(ctx, some.facet, s.facets[some.facet])
		if err != nil {
			return fmt.Errorf("make the stored contents: %w", err)
		}
		const most = 500
		for from := 0; from < some.count; from += most {
			var writes []store.Write
			for i := from; i < min(from+most, some.count); i++ {
				w := made[i%len(made)]
				w.Entity = schemas.Entity{Source: s.source, Facet: some.facet, Key: fmt.Sprint(some.prefix, i)}
				w.CheckedAt = some.checked
				writes = append(writes, w)
			}
			if _, err := db.Write(ctx, writes); err != nil {
				return err
			}
		}
	}
	return nil
}

// register has entities prefetched, the first in a few seconds and the others behind it,
// one a second.
func (s *site) register(ctx context.Context, count int) error {
	db, err := postgres.Open(ctx, s.database)
	if err != nil {
		return err
	}
	defer db.Close()
	var all []store.Registered
	for i := range count {
		all = append(all, store.Registered{
			Entity: schemas.Entity{Source: s.source, Facet: facet, Key: fmt.Sprint("due-", i)}, Tier: store.Cold, Enabled: true,
			Due: time.Now().Add(time.Duration(5+i) * time.Second),
		})
	}
	_, err = db.RegisterEntities(ctx, all)
	return err
}

// contentsOf fetches and reads documents of the simulator's, without its quota.
func contentsOf(ctx context.Context, facet, document string) (all []store.Write, err error) {
	src, end, err := anotherUpstream(map[string]string{facet: document})
	if err != nil {
		return nil, err
	}
	defer end()
	for i := range contents {
		c, err := content(ctx, src, facet, contentOf(i))
		if err != nil {
			return nil, err
		}
		payload := store.Encode(c.JSON)
		all = append(all, store.Write{
			Version: 1, Hash: c.Hash, ExtractVersion: c.ExtractVersion,
			Payload: func() (store.Payload, error) { return payload, nil },
		})
		c.Release()
	}
	return all, nil
}

// contentOf is the key whose document is stored under a prefix and this number.
func contentOf(n int) string { return fmt.Sprint("content", n%contents) }

// freely gives every permit.
type freely struct{}

func (freely) Acquire(context.Context, source.Call) (source.Permit, error) { return freely{}, nil }
func (freely) Spend(context.Context) error                                 { return nil }
func (freely) Release()                                                    {}
func (freely) Written()                                                    {}
func (freely) Credential() string                                          { return "" }
func (freely) Finished(source.Ended)                                       {}
func (freely) Answered()                                                   {}
