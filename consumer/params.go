package consumer

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// addParams completes the params of requests with the params that their entities are registered
// with, and plans their calls. Readers of the HTTP API know only the key. The request itself is not
// changed, so that a later retry uses the params that are registered at the time of the retry.
// addParams fails only if ctx ends.
func (w *Worker) addParams(ctx context.Context, tasks []*task) error {
	var incomplete []*task
	var entities []schemas.Entity
	for _, t := range tasks {
		if t.invalid == nil && len(w.missingParams(t, t.ownParams())) > 0 {
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
		w.aliases.need(t)
		if missing := w.missingParams(t, t.params); t.pending && len(missing) == 0 {
			continue
		}
		if t.plan, err = w.planFor(t); err != nil {
			t.reason, t.invalid = schemas.InvalidRequest, fmt.Errorf("%w; %s", err, paramAdvice(w.missingParams(t, t.params)))
		}
	}
	return nil
}

// missingParams returns the names of the params for which neither the key, the facet nor params has
// a value.
func (w *Worker) missingParams(t *task, params map[string]string) []string {
	return w.source.MissingParams(t.request.Facet, t.request.Key, params)
}

// ownParams returns the params of the request that take precedence over the registered params. For
// a trigger it returns none, because a trigger's params come from another facet. The params of a next
// page come from the request of the page before.
func (t *task) ownParams() map[string]string {
	if t.request.Reason == schemas.Trigger || t.request.Reason == schemas.NextPage {
		return nil
	}
	return t.request.Params
}

// paramAdvice returns advice for an operator if the params do not make a valid call. `missing` are the
// names of the params without a value.
func paramAdvice(missing []string) string {
	if len(missing) == 0 {
		return "register the entity with other params"
	}
	return "register the entity with a value for " + strings.Join(missing, " and ")
}
