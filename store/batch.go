package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// Batch is a set of writes in the order in which a database takes them: sorted
// by entity, so that two batches never wait for each other in a circle, with one
// write an entity, since one statement can't change a row twice.
type Batch struct {
	Writes     []Write
	Results    []Result
	order      []int // position in the caller's list
	superseded []int // positions in that list of those that lost to a later fetch of their entity
}

// NewBatch sorts the writes. Of two for one entity the one of the higher version
// is taken and the other refused.
func NewBatch(writes []Write) *Batch {
	b := &Batch{order: make([]int, len(writes))}
	for i := range writes {
		b.order[i] = i
	}
	slices.SortStableFunc(b.order, func(x, y int) int {
		return cmp.Or(compareEntities(writes[x].Entity, writes[y].Entity), cmp.Compare(writes[y].Version, writes[x].Version))
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
	b.Results = make([]Result, len(kept))
	return b
}

// InOrder returns the results in the order of the list that NewBatch was given.
// It fails if a write has no result, which would be the database's mistake.
func (b *Batch) InOrder() ([]Result, error) {
	results := make([]Result, len(b.order)+len(b.superseded))
	for n, i := range b.order {
		if b.Results[n] == 0 {
			return nil, fmt.Errorf("the write of %s had no result", b.Writes[n].Entity)
		}
		results[i] = b.Results[n]
	}
	for _, i := range b.superseded {
		results[i] = Superseded
	}
	return results, nil
}

// Find returns the index of the entity's write.
func (b *Batch) Find(e schemas.Entity) (int, bool) {
	return slices.BinarySearchFunc(b.Writes, e, func(w Write, e schemas.Entity) int { return compareEntities(w.Entity, e) })
}

func compareEntities(a, b schemas.Entity) int {
	return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Facet, b.Facet), strings.Compare(a.Key, b.Key))
}
