package query

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// pay sets credits aside for the requests, enqueues the requests that are paid for, and records the
// results. It returns a result for each request.
func (r *refreshes) pay(ctx context.Context, client access.Client, idempotencyKey string, requests []UpdateRequest, enqueue func(context.Context, []UpdateRequest) []EnqueueResult) []EnqueueResult {
	if r.credits == nil {
		return enqueue(ctx, requests)
	}
	entities := make([]schemas.Entity, len(requests))
	for i, req := range requests {
		entities[i] = req.Entity
	}
	results := make([]EnqueueResult, len(requests))
	var paid []UpdateRequest
	var indexes []int // for each element of paid, its index in requests
	var confirmed []credits.Enqueued
	for i, reserved := range r.credits.Reserve(ctx, client, entities, idempotencyKey) {
		switch {
		case reserved.Err != nil:
			results[i] = refusedResult(reserved.Err)
			if results[i].Reason = ReasonNoCredits; statusOf(reserved.Err) == http.StatusServiceUnavailable {
				results[i].Reason = ReasonDown
			}
		case reserved.Number > 0:
			results[i] = EnqueueResult{Queued: true, Number: reserved.Number, isRepeated: true}
		default:
			paid, indexes = append(paid, requests[i]), append(indexes, i)
			confirmed = append(confirmed, credits.Enqueued{Reservation: reserved})
		}
	}
	if len(paid) == 0 {
		return results
	}
	for j, result := range enqueue(ctx, paid) {
		results[indexes[j]] = result
		switch confirmed[j].Number = result.Number; {
		case result.Queued:
			confirmed[j].Outcome = credits.Queued
		case !result.Pending:
			confirmed[j].Outcome = credits.NotQueued
		}
	}
	r.credits.Confirm(ctx, confirmed)
	return results
}

// balance responds with the credits of the client.
func (r *refreshes) balance(c echo.Context, client access.Client) error {
	a, known, err := r.credits.Balance(c.Request().Context(), client)
	if err != nil {
		return err
	}
	if !known {
		return problem.New(http.StatusNotFound, problem.NoSuchCredits, "A client with the scope admin needs no credits and has no balance.")
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, a)
}
