package harness

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/store/prefetched"
)

// ContentCount is the number of different contents that Store uses in turn.
const ContentCount = 128

// Stored describes Count snapshots of a facet, with the keys prefix0, prefix1 and so on.
type Stored struct {
	Facet   string
	Prefix  string
	Count   int
	Checked time.Time // when the snapshots were last checked
}

// Store writes snapshots into the database, as a worker does.
func (s *Site) Store(ctx context.Context, all ...Stored) error {
	db, err := postgres.Open(ctx, s.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, some := range all {
		contents, err := Contents(ctx, some.Facet, s.Facets[some.Facet])
		if err != nil {
			return fmt.Errorf("make contents: %w", err)
		}
		const maxBatch = 500
		for from := 0; from < some.Count; from += maxBatch {
			var writes []store.Write
			for i := from; i < min(from+maxBatch, some.Count); i++ {
				w := contents[i%len(contents)]
				w.Entity = schemas.Entity{Source: s.Source, Facet: some.Facet, Key: fmt.Sprint(some.Prefix, i)}
				w.CheckedAt = some.Checked
				writes = append(writes, w)
			}
			if _, err := db.Write(ctx, writes); err != nil {
				return err
			}
		}
	}
	return nil
}

// Register registers entities for prefetch: due-0, due-1 and so on; `count` is their number. The
// entity due-0 is due in five seconds. Each further entity is due one second after the entity
// before it.
func (s *Site) Register(ctx context.Context, facet string, count int) error {
	db, err := postgres.Open(ctx, s.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	var all []prefetched.RegisteredEntity
	for i := range count {
		all = append(all, prefetched.RegisteredEntity{
			Entity: schemas.Entity{Source: s.Source, Facet: facet, Key: fmt.Sprint("due-", i)}, Tier: prefetched.Cold, Enabled: true,
			Due: time.Now().Add(time.Duration(5+i) * time.Second),
		})
	}
	_, err = db.RegisterEntities(ctx, all)
	return err
}

// Contents returns ContentCount different contents of a document of the simulator.
func Contents(ctx context.Context, facet, document string) (all []store.Write, err error) {
	src, end, err := ReferenceSource(map[string]string{facet: document})
	if err != nil {
		return nil, err
	}
	defer end()
	for i := range ContentCount {
		c, err := FetchContent(ctx, src, facet, ContentKey(i))
		if err != nil {
			return nil, err
		}
		payload := store.Encode(c.Bytes)
		all = append(all, store.Write{
			Version: 1, Hash: c.Hash, ExtractVersion: c.ExtractVersion,
			Payload: func() (store.Payload, error) { return payload, nil },
		})
		c.Release()
	}
	return all, nil
}

// ContentKey returns a key of the simulator. Store writes the simulator's document with this key as
// the content of every entity whose own key has the number n.
func ContentKey(n int) string { return fmt.Sprint("content", n%ContentCount) }

// UnlimitedPermits implements source.Permits and grants every permit immediately.
var UnlimitedPermits unlimited

type unlimited struct{}

func (unlimited) Acquire(context.Context, source.Call) (source.Permit, error) {
	return unlimited{}, nil
}
func (unlimited) Spend(context.Context) error { return nil }
func (unlimited) Release()                    {}
func (unlimited) Written()                    {}
func (unlimited) Credential() string          { return "" }
func (unlimited) Finished(source.CallResult)  {}
func (unlimited) Answered()                   {}

// ReferenceSource returns the reference source with a simulator in this process as its
// upstream. The simulator has the same documents as the site's upstream and no quota. The
// caller must call end.
func ReferenceSource(facets map[string]string) (src *source.Source, end func(), err error) {
	upstream := simulator.New(simulator.Config{Seed: 1})
	server := httptest.NewServer(upstream)
	stop := func() {
		server.Close()
		upstream.Close()
	}
	var config source.Config
	if err = yaml.Unmarshal([]byte(Preset(server.URL, facets)), &config); err == nil {
		src, err = source.New("nexon", config, map[string]string{"": "a-key"}, 1)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return src, func() { src.Close(); stop() }, nil
}

// FetchContent fetches an entity and returns the content that a worker would store. The caller must
// release the content.
func FetchContent(ctx context.Context, src *source.Source, facet, key string) (*source.Content, error) {
	plan, err := src.Plan(source.Request{Facet: facet, Key: key})
	if err != nil {
		return nil, err
	}
	answers, err := src.Fetch(ctx, plan, UnlimitedPermits)
	if err != nil {
		return nil, err
	}
	outcome := src.Read(answers, time.Now())
	if outcome.Class != source.OK {
		return nil, fmt.Errorf("%s: %w", outcome.Class, outcome.Err)
	}
	return outcome.Content, nil
}
