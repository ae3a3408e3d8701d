package shared

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Batch is a set of writes sorted by entity. Concurrent batches lock their rows in this order, which
// prevents deadlocks. A batch has one write per entity, because one statement can't update a row
// twice.
type Batch struct {
	Writes     []store.Write
	Results    []store.Result
	order      []int // position of each write in the caller's list
	superseded []int // positions of dropped writes: their entity has a write with a higher version
}

// NewBatch sorts the writes. If two writes have the same entity, it keeps the write with the higher
// version; the result of the dropped write is Superseded.
func NewBatch(writes []store.Write) *Batch {
	b := &Batch{order: make([]int, len(writes))}
	for i := range writes {
		b.order[i] = i
	}
	slices.SortStableFunc(b.order, func(x, y int) int {
		return cmp.Or(schemas.Entity.Compare(writes[x].Entity, writes[y].Entity), cmp.Compare(writes[y].Version, writes[x].Version))
	})
	kept := b.order[:0]
	for _, i := range b.order {
		if n := len(kept); n > 0 && writes[kept[n-1]].Entity == writes[i].Entity {
			b.superseded = append(b.superseded, i)
			continue
		}
		kept = append(kept, i)
		b.Writes = append(b.Writes, writes[i])
	}
	b.order = kept
	b.Results = make([]store.Result, len(kept))
	return b
}

// InOrder returns the results in the order of the caller's list. It fails if a write has no
// result, which would be a bug in store/postgres or store/sqlite.
func (b *Batch) InOrder() ([]store.Result, error) {
	results := make([]store.Result, len(b.order)+len(b.superseded))
	for n, i := range b.order {
		if b.Results[n] == 0 {
			return nil, fmt.Errorf("write of %s has no result", b.Writes[n].Entity)
		}
		results[i] = b.Results[n]
	}
	for _, i := range b.superseded {
		results[i] = store.Superseded
	}
	return results, nil
}

// Aliases returns the entities in Write.Aliases of all writes that have no result yet, sorted and
// without duplicates.
func (b *Batch) Aliases() (all []schemas.Entity) {
	for i, w := range b.Writes {
		if b.Results[i] != 0 {
			continue
		}
		for _, a := range w.Aliases {
			all = append(all, a.Entity)
		}
	}
	slices.SortFunc(all, schemas.Entity.Compare)
	return slices.Compact(all)
}

// MayTouch reports whether write i can be the check of unchanged content. Before the aliases are checked
// (CheckAliases), it leaves out writes whose alias the batch also writes. Afterwards only writes with
// aliases remain: their rows may be marked because of an earlier change (ChangedAliasUsers).
func (b *Batch) MayTouch(i int, checked bool) bool {
	w := b.Writes[i]
	switch {
	case b.Results[i] != 0 || w.Kind == store.KindNotFound:
		return false
	case checked:
		return len(w.Aliases) > 0
	}
	return !slices.ContainsFunc(w.Aliases, func(a store.State) bool {
		_, found := b.Find(a.Entity)
		return found
	})
}

// ChangedAliasUsers returns the entities that take a param from an entity whose stored result the batch
// has replaced, sorted and without duplicates. Their rows must be marked in the same transaction. It
// leaves out entities that the batch has stored, because it has compared their aliases.
func (b *Batch) ChangedAliasUsers() (users []schemas.Entity) {
	for i, w := range b.Writes {
		if r := b.Results[i]; r != store.Changed && r != store.Rewritten && r != store.NotFoundStored {
			continue
		}
		for _, facet := range w.AliasUsers {
			user := schemas.Entity{Source: w.Entity.Source, Facet: facet, Key: w.Entity.Key}
			if n, found := b.Find(user); !found || !b.Results[n].Stored() {
				users = append(users, user)
			}
		}
	}
	slices.SortFunc(users, schemas.Entity.Compare)
	return slices.Compact(users)
}

// CheckAliases checks the aliases of the writes that have no result yet. It sets the result store.BaseMissing
// if an alias differs from its stored state, or from the state that the same batch stores. The argument
// has the stored states of the entities that Aliases returned.
func (b *Batch) CheckAliases(stored []store.State) {
	now := make(map[schemas.Entity]store.State, len(stored))
	for _, s := range stored {
		if i, found := b.Find(s.Entity); found && b.Writes[i].Version >= s.Version && b.Writes[i].Kind != store.NotModified {
			s.Version, s.Hash, s.NotFound = b.Writes[i].Version, b.Writes[i].Hash, b.Writes[i].Kind == store.KindNotFound
		}
		now[s.Entity] = s
	}
	for i, w := range b.Writes {
		if b.Results[i] != 0 {
			continue
		}
		for _, a := range w.Aliases {
			if s := now[a.Entity]; s.Version == 0 || s.NotFound != a.NotFound || (!s.NotFound && s.Hash != a.Hash) {
				b.Results[i] = store.BaseMissing
			}
		}
	}
}

// Find returns the index in Writes of the entity's write.
func (b *Batch) Find(e schemas.Entity) (int, bool) {
	return slices.BinarySearchFunc(b.Writes, e, func(w store.Write, e schemas.Entity) int { return schemas.Entity.Compare(w.Entity, e) })
}
