package runs

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// fan describes steps to add: the steps for up to fanItems items of a collection.
type fan struct {
	step     int
	from, to fanPosition
	children []Step
	last     bool // these are the last items, so the collection's step ends
}

// maxSteps is the maximum number of steps of a run.
const maxSteps = 1_000_000

// addSteps adds the steps of a fan to a run. After the last items it ends the step of the collection.
// It changes nothing if another process has added these steps already, or if the collection's step has
// ended.
func (r *Runs) addSteps(ctx context.Context, id string, f fan, now time.Time) (Run, error) {
	return r.change(ctx, id, now, func(c *change) error {
		moved, err := one(ctx, c.tx, moveFan, id, f.step, f.from.version, f.from.item, f.to.version, f.to.item)
		if err != nil || !moved {
			return err
		}
		added, err := c.unknown(ctx, f.children)
		if err != nil {
			return err
		}
		if c.run.Counts.Total+len(added) > maxSteps {
			c.run.Error = fmt.Sprintf("the run would have more than %d steps", maxSteps)
			if err := c.endOpen(ctx, StepFailed, c.run.Error); err != nil {
				return err
			}
			return c.endRun(ctx, Failed)
		}
		for i := range added {
			if added[i].State != StepOpen {
				added[i].EndedAt = c.now
			}
			c.run.Counts.add(added[i].State, 1)
		}
		if err := insert(ctx, c.tx, Run{ID: id, Source: c.run.Source}, c.run.Counts.Total, added, c.now); err != nil {
			return err
		}
		c.run.Counts.Total += len(added)
		if f.last {
			if err := c.end(ctx, []StepEnd{{Number: f.step, State: StepDone}}); err != nil {
				return err
			}
		}
		return c.finish(ctx)
	})
}

// unknown returns the steps that the run does not have yet, without duplicates.
func (c *change) unknown(ctx context.Context, steps []Step) (unknown []Step, err error) {
	type name struct{ facet, key string }
	known := map[name]bool{}
	for _, facet := range facetsOf(steps) {
		args := []any{c.run.ID, facet}
		for _, s := range steps {
			if s.Facet == facet {
				args = append(args, s.Key)
			}
		}
		err := c.tx.Query(ctx, func(scan func(...any) error) error {
			n := name{facet: facet}
			err := scan(&n.key)
			known[n] = true
			return err
		}, selectKeys+placeholders(3, len(args)-2)+")", args...)
		if err != nil {
			return nil, err
		}
	}
	for _, s := range steps {
		if n := (name{s.Facet, s.Key}); !known[n] {
			known[n] = true
			unknown = append(unknown, s)
		}
	}
	return unknown, nil
}

func facetsOf(steps []Step) (facets []string) {
	for _, s := range steps {
		if !slices.Contains(facets, s.Facet) {
			facets = append(facets, s.Facet)
		}
	}
	return facets
}
