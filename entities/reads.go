package entities

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

// ReadCount is the number of reads of an entity.
type ReadCount struct {
	Entity schemas.Entity
	Count  int
}

// Counts reports whether reads of the facet are counted. They are counted if the facet is
// prefetched.
func (s *Entities) Counts(source, facet string) bool {
	src, known := s.Sources[source]
	return known && src.Schedule.Prefetches(facet)
}

// RecordReads adds the numbers of new reads of entities. All these reads happened before the time
// "until". It registers unknown entities of prefetched facets in the tier cold. Entities whose
// reads have risen enough become due at once.
func (s *Entities) RecordReads(ctx context.Context, reads []ReadCount, until time.Time) error {
	now := s.Now()
	var counted []prefetched.EntityReads
	first := map[string]time.Time{}
	for _, read := range reads {
		src, known := s.Sources[read.Entity.Source]
		if !known {
			continue
		}
		c := prefetched.EntityReads{Entity: read.Entity, Count: read.Count, At: until, Tier: prefetched.Cold}
		var prefetched bool
		if c.Due, prefetched = src.Schedule.FirstDue(c.RegisteredEntity(), now); !prefetched {
			continue
		}
		counted = append(counted, c)
		if at, ok := first[read.Entity.Source]; !ok || c.Due.Before(at) {
			first[read.Entity.Source] = c.Due
		}
	}
	if len(counted) == 0 {
		return nil
	}
	risen := func(r prefetched.RegisteredEntity, before, after float64) bool {
		rises := s.Sources[r.Entity.Source].Schedule.ReadsMakeDue(r, before, after)
		if rises {
			first[r.Entity.Source] = until
		}
		return rises
	}
	if err := s.Store.ObserveReads(ctx, counted, risen); err != nil {
		return err
	}
	// An entity that was registered already may have a stored due time other than "at". That does
	// no harm: the scheduler wakes up at the time "at", and then reads the stored due times.
	for source, at := range first {
		s.Notifier.WakeAt(ctx, source, at)
	}
	return nil
}
