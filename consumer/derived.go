package consumer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/store"
)

// Items reads the stored items of collections.
type Items interface {
	// InKeyOrder returns at most `limit` collections of the filter's source and facet, sorted by their
	// keys. Only collections are returned whose keys begin with f.KeyPrefix and are greater than the
	// key `after`.
	InKeyOrder(ctx context.Context, f store.KeyRange, after string, limit int) ([]collection.Listed, error)
	// Scan reads at most `limit` items after the position `after`, in the order of their last changes,
	// and calls the function `each` for each of them. The content is valid only until `each` returns.
	Scan(ctx context.Context, e schemas.Entity, after collection.Position, limit int, each func(at collection.Position, content []byte)) error
}

// derivations computes the content of derived facets from stored items, without calls and permits. In
// all other respects a request of a derived entity is like every request: it has a version, retries and
// dead letters, and unchanged content is not stored again.
type derivations struct {
	w     *Worker
	items Items
}

// The maximum numbers of collections, items and results that one query of the database returns.
const (
	collectionChunk = 1000
	itemChunk       = 1000
	resultChunk     = 100
)

// try makes one attempt to compute and store the content of a derived entity. It is called by
// Worker.tryOnce, and returns a decision with the same meaning.
func (d *derivations) try(ctx, hard context.Context, a *attempt) decision {
	w, t := d.w, a.t
	end := func() decision { a.ended = true; return decision{} }
	if w.gates.wait(ctx) != nil {
		return end()
	}
	memory, err := w.memory.reserve(ctx, t.client, min(derived.MaxMemory, w.config.MaxBodyBytes))
	if err != nil {
		return end()
	}
	a.mu.Lock()
	err = a.begin(ctx)
	a.mu.Unlock()
	if err != nil {
		memory.resize(0)
		return a.notBegun(err)
	}
	w.conditions.Resolved(w.log, failedOperation(opBegin))
	c, err := (&derivation{derivations: d, t: t, config: t.facet.Derived, visibility: w.source.Visibility(t.request.Key)}).compute(ctx)
	w.metrics.derive.Observe(time.Since(a.began).Seconds())
	switch {
	case ctx.Err() != nil: // the record stays uncommitted, and a worker reads it again
		memory.resize(0)
	case err != nil:
		memory.resize(0)
		w.metrics.errors.WithLabelValues(string(schemas.NotComputed)).Inc()
		w.settler.scheduleRetry(hard, t, decision{next: stepScheduleRetry, countsFailure: true}, failure{reason: schemas.NotComputed, err: err, number: a.number})
	case c.Empty():
		w.storeResult(hard, a, fetched{outcome: source.Outcome{Class: source.NotFound}, memory: memory})
	default:
		text := c.Content()
		p := store.Encode(text)
		w.storeResult(hard, a, fetched{outcome: source.Outcome{Class: source.OK}, memory: memory, content: content{
			hash: sha256.Sum256(text), extractVersion: t.plan.ExtractVersion(), bytes: len(p.Bytes),
			payload: func() (store.Payload, error) { return p, nil },
		}})
	}
	return end()
}

// derivation computes the content of one entity of a derived facet.
type derivation struct {
	*derivations
	t      *task
	config *derived.Config
	// visibility is the visibility of the computed content. Only collections and results with this
	// visibility are read. So readers of the content see no data that they are not allowed to see.
	visibility string
}

// compute reads the stored items and computes the content of the entity. It fails if ctx ends, or if a
// measure can't be computed from an item's value.
func (d *derivation) compute(ctx context.Context) (*derived.Computation, error) {
	c := d.config.New()
	if !d.config.IsAll(d.t.request.Key) {
		return c, d.addKey(ctx, c, d.t.request.Key)
	}
	if !d.config.Mergeable() {
		return c, d.eachCollection(ctx, "", func(over string, s collection.Listed, _ string) error { return d.addItems(ctx, c, over, s) })
	}
	keys := map[string]struct{}{}
	err := d.eachCollection(ctx, "", func(_ string, _ collection.Listed, of string) error {
		keys[of] = struct{}{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(keys)), resultChunk) {
		if err := d.addResults(ctx, c, some); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// addResults adds the stored results of several keys to the computation. If a key has no result that
// was computed with the current configuration, it adds the items of the key instead.
func (d *derivation) addResults(ctx context.Context, c *derived.Computation, keys []string) error {
	entities := make([]schemas.Entity, len(keys))
	for i, key := range keys {
		entities[i] = d.t.request.Entity
		entities[i].Key = key
	}
	var results []store.Snapshot
	err := d.w.db.retry(ctx, opDerive, func(ctx context.Context) (err error) {
		results, err = d.w.db.GetAll(ctx, entities)
		return err
	})
	if err != nil {
		return err
	}
	var text []byte
	for i, r := range results {
		if !r.HasContent() || r.NotFound || r.ExtractVersion != d.t.plan.ExtractVersion() || r.Visibility != d.visibility {
			err = d.addKey(ctx, c, keys[i])
		} else if text, err = r.Decode(text[:0]); err == nil {
			err = c.Merge(text)
		}
		if err != nil {
			return fmt.Errorf("key %s: %w", keys[i], err)
		}
	}
	return nil
}

// addKey adds the items of all collections that belong to the key.
func (d *derivation) addKey(ctx context.Context, c *derived.Computation, key string) error {
	return d.eachCollection(ctx, key, func(over string, s collection.Listed, of string) error {
		if of != key {
			return nil
		}
		return d.addItems(ctx, c, over, s)
	})
}

// eachCollection calls `do` for each collection that can belong to the key, or for all collections if
// the key is empty. The arguments of `do` are the facet of the collection, the collection, and the key
// to which the collection belongs.
func (d *derivation) eachCollection(ctx context.Context, key string, do func(over string, s collection.Listed, of string) error) error {
	for _, over := range slices.Sorted(maps.Keys(d.config.Over)) {
		in, filter, limit := d.config.Over[over], store.KeyRange{Source: d.t.request.Source, Facet: over, KeyPrefix: key}, collectionChunk
		if in.Exact() && key != "" {
			limit = 1 // the key itself sorts before all other keys that begin with it
		}
		for after, more := "", true; more; {
			var stored []collection.Listed
			err := d.w.db.retry(ctx, opDerive, func(ctx context.Context) (err error) {
				stored, err = d.items.InKeyOrder(ctx, filter, after, limit)
				return err
			})
			if err != nil {
				return err
			}
			for _, s := range stored {
				after = s.Key
				of, ok := in.KeyOf(s.Key)
				if !ok || s.Visibility != d.visibility {
					continue
				}
				if err := do(over, s, of); err != nil {
					return err
				}
			}
			more = len(stored) == limit && limit > 1
		}
	}
	return nil
}

// addItems adds the items of a collection. An item that changes during the scan can be added twice.
// This is harmless, because its change causes another computation.
func (d *derivation) addItems(ctx context.Context, c *derived.Computation, over string, s collection.Listed) error {
	e := schemas.Entity{Source: d.t.request.Source, Facet: over, Key: s.Key}
	c.AddCollection(over, s.Complete)
	var invalid error
	var after collection.Position
	for more := true; more; {
		n := 0
		err := d.w.db.retry(ctx, opDerive, func(ctx context.Context) error {
			n = 0
			return d.items.Scan(ctx, e, after, itemChunk, func(at collection.Position, content []byte) {
				n, after = n+1, at // if the scan is repeated, it begins after this item
				if err := c.Add(over, content); err != nil && invalid == nil {
					invalid = fmt.Errorf("item %s of %s/%s: %w", at.ID, over, s.Key, err)
				}
			})
		})
		switch {
		case err != nil:
			return err
		case invalid != nil:
			return invalid
		}
		more = n == itemChunk
	}
	return nil
}
