package consumer

import (
	"context"
	"maps"

	"github.com/freshet/freshet/schemas"
)

// addParams gives requests that leave open what their facet needs the params that their
// entities are registered with: who reads knows the key alone. It fails only if ctx ends.
func (w *Worker) addParams(ctx context.Context, tasks []*task) error {
	var open []*task
	var of []schemas.Entity
	for _, t := range tasks {
		if t.refused == nil && t.facet.LeavesOpen(t.request.Params) {
			open, of = append(open, t), append(of, t.request.Entity)
		}
	}
	if len(open) == 0 {
		return nil
	}
	var registered []map[string]string
	err := w.persistDB(ctx, doingParams, func(ctx context.Context) (err error) {
		registered, err = w.store.RegisteredParams(ctx, of)
		return err
	})
	if err != nil {
		return err
	}
	for i, t := range open {
		if len(registered[i]) == 0 {
			continue
		}
		params := maps.Clone(registered[i])
		maps.Copy(params, t.request.Params) // a request's own win
		t.request.Params = params
		if t.plan, err = w.planFor(t); err != nil {
			t.reason, t.refused = schemas.InvalidRequest, err
		}
	}
	return nil
}
