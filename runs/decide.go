package runs

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// decision is the next action of a poller for a due step. Exactly one field is set.
type decision struct {
	end     *StepEnd
	fan     bool // add a step for each item of the collection
	request bool
	wait    time.Time // time at which a poller must examine the step again
}

// retryRecheck is the maximum time until a poller examines a step again whose failed request waits for
// its retry. The request of the retry contains no run id, so its worker does not make the step due.
const retryRecheck = 15 * time.Second

// decide returns the next action for a step. It derives the action from the stored data of the step's
// entity.
func decide(c claimed, s *source.Source, now time.Time) decision {
	end := func(state StepState, format string, args ...any) decision {
		return decision{end: &StepEnd{Number: c.Number, State: state, Error: fmt.Sprintf(format, args...)}}
	}
	f, known := s.Facet(c.Facet)
	if !known {
		return end(StepFailed, "the facet %s is not in the configuration; add it again and retry the run", c.Facet)
	}
	if err := s.CheckKey(c.Facet, c.Key); err != nil {
		return end(StepFailed, "%v", err)
	}
	since := func(at time.Time) bool { return !at.Before(c.since) }
	switch {
	case (c.failure.State == store.Failed || c.failure.State == store.Suspended) && !c.failure.UpdatedAt.Before(c.attemptAt):
		return end(StepFailed, "%s: %s", c.failure.Reason, c.failure.Error)
	case c.notFound && since(c.checkedAt):
		return end(StepNotFound, "")
	case f.Collection != nil && !c.completeAt.IsZero() && since(c.completeAt):
		return decision{fan: true}
	case f.Collection == nil && c.hasContent && !c.notFound && (since(c.checkedAt) || f.Immutable):
		return end(StepDone, "")
	case c.failure.State == store.Retrying:
		wait := now.Add(retryRecheck)
		if at := c.failure.Until.Add(time.Second); at.After(now) && at.Before(wait) {
			wait = at
		}
		return decision{wait: wait}
	}
	return decision{request: true}
}

// children returns the steps to add for items of a collection. If the key for an item is missing or
// invalid, the step is FAILED, and its error names the item.
func children(d Definition, facet string, items []collection.Item, s *source.Source) (steps []Step) {
	for _, child := range d.childrenOf(facet) {
		key, err := parseTemplate(child.Key)
		f, known := s.Facet(child.Facet)
		if !known && err == nil {
			err = fmt.Errorf("the facet %s is not in the configuration", child.Facet)
		}
		for _, i := range items {
			content := gjson.ParseBytes(i.Content)
			if excluded(content, child.Unless) {
				continue
			}
			step := Step{Facet: child.Facet, State: StepOpen}
			why := err
			if why == nil {
				if step.Key, why = key.keyOf(content); why == nil {
					step.Key = f.FoldKey(step.Key)
					why = s.CheckKey(child.Facet, step.Key)
				}
			}
			if why != nil {
				step.State, step.Error = StepFailed, cut(fmt.Sprintf("item %s of %s: %v", i.ID, facet, why), maxErrorBytes)
				step.Key = storable(step.Key, i.ID)
			}
			steps = append(steps, step)
		}
	}
	return steps
}

func excluded(item gjson.Result, unless []string) bool {
	for _, path := range unless {
		if item.Get(path).Bool() {
			return true
		}
	}
	return false
}

// storable makes an invalid key storable: it removes control characters and invalid UTF-8, and shortens
// it. If nothing is left, it returns the id of the item.
func storable(key, id string) string {
	key = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(key, ""))
	if key = cut(key, schemas.MaxKeyBytes); key == "" {
		return cut(id, schemas.MaxKeyBytes)
	}
	return key
}
