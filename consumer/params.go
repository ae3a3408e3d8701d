package consumer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// addParams completes the params of requests with the params that their entities are registered
// with, and plans their calls. Readers of the HTTP API know only the key. The request itself is not
// changed, so that a later retry uses the params that are registered at its own time. addParams
// fails only if ctx ends.
func (w *Worker) addParams(ctx context.Context, tasks []*task) error {
	var incomplete []*task
	var entities []schemas.Entity
	for _, t := range tasks {
		if t.invalid == nil && t.facet.HasMissingParams(t.ownParams()) {
			incomplete, entities = append(incomplete, t), append(entities, t.request.Entity)
		}
	}
	if len(incomplete) == 0 {
		return nil
	}
	var registered []map[string]string
	err := w.retryDB(ctx, opParams, func(ctx context.Context) (err error) {
		registered, err = w.store.EntityParams(ctx, entities)
		return err
	})
	if err != nil {
		return err
	}
	for i, t := range incomplete {
		if len(registered[i]) > 0 {
			t.params = maps.Clone(registered[i])
			for name, value := range t.ownParams() {
				if value != "" {
					t.params[name] = value
				}
			}
			for name, value := range t.request.Params { // a trigger's params are used only where no registered value exists
				if t.params[name] == "" {
					t.params[name] = value
				}
			}
		}
		if t.plan, err = w.planFor(t); err != nil {
			t.reason, t.invalid = schemas.InvalidRequest, fmt.Errorf("%w; %s", err, t.paramAdvice())
		}
	}
	return nil
}

// ownParams returns the params of the request that take precedence over the registered ones. A
// trigger's params do not, because they come from another facet.
func (t *task) ownParams() map[string]string {
	if t.request.Reason == schemas.Trigger {
		return nil
	}
	return t.request.Params
}

// paramAdvice returns advice for an operator if the params do not make a valid call.
func (t *task) paramAdvice() string {
	var open []string
	for _, name := range slices.Sorted(maps.Keys(t.facet.Params)) {
		if t.facet.Params[name] == "" && t.params[name] == "" {
			open = append(open, name)
		}
	}
	if len(open) == 0 {
		return "register the entity with other params"
	}
	return "register the entity with a value for " + strings.Join(open, " and ")
}
