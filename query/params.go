package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// enqueueComplete calls the function `enqueue` with the requests whose entities have a value for
// each param. Every other request gets ReasonMissingParams: a worker could make no call for it and
// would write a dead letter. The store is read only for facets that need registered params. If that
// read fails, the requests of these facets get ReasonDown.
func (q *requester) enqueueComplete(requests []UpdateRequest, enqueue func([]UpdateRequest) []EnqueueResult) []EnqueueResult {
	var open []int // indexes of the requests that need registered params
	for i, req := range requests {
		if len(q.catalog.missingParams(req.Entity, nil)) > 0 {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return enqueue(requests)
	}
	results := make([]EnqueueResult, len(requests))
	for j, result := range q.paramResults(requests, open) {
		results[open[j]] = result
	}
	var complete []UpdateRequest
	var indexes []int // for each element of complete, its index in requests
	for i, req := range requests {
		if results[i].Reason == "" {
			complete, indexes = append(complete, req), append(indexes, i)
		}
	}
	if len(complete) > 0 {
		for j, result := range enqueue(complete) {
			results[indexes[j]] = result
		}
	}
	return results
}

// paramResults returns a result for each of the requests with the given indexes: ReasonMissingParams
// or ReasonDown if the request must not be enqueued, else the zero value.
func (q *requester) paramResults(requests []UpdateRequest, indexes []int) []EnqueueResult {
	entities := make([]schemas.Entity, len(indexes))
	for j, i := range indexes {
		entities[j] = requests[i].Entity
	}
	// Concurrent reads of several clients can share this result, so the context is not that of one
	// HTTP request.
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	v, err := withRecover(func() (any, error) {
		return withBreaker(q.cache.breaker, func() ([]map[string]string, error) { return q.cache.store.EntityParams(ctx, entities) })
	})()
	registered, _ := v.([]map[string]string)
	results := make([]EnqueueResult, len(entities))
	for j, e := range entities {
		if err != nil {
			results[j].Reason = ReasonDown
		} else if missing := q.catalog.missingParams(e, registered[j]); len(missing) > 0 {
			results[j] = EnqueueResult{Reason: ReasonMissingParams, refused: missingParamsProblem(e, missing)}
		}
	}
	if err != nil {
		q.log.Debug("params of entities can't be read; update requests of these entities are rejected", "entities", len(entities), "err", err)
	}
	return results
}

func (cat *catalog) missingParams(e schemas.Entity, params map[string]string) []string {
	return cat.sources[e.Source].MissingParams(e.Facet, e.Key, params)
}

func missingParamsProblem(e schemas.Entity, missing []string) error {
	names := strings.Join(missing, " and ")
	return problem.New(http.StatusBadRequest, problem.MissingParams, fmt.Sprintf(
		"The entity can't be fetched: %s has no value. Register the entity with a value for it (freshet entities import), or let the keyPattern of %s/%s fill it from the key with (?P<%s>…).",
		names, e.Source, e.Facet, missing[0]))
}

// statusOf returns the HTTP status of the problem response for a refused request.
func statusOf(err error) int {
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		return p.Status
	}
	return http.StatusTooManyRequests
}
