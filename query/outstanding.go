package query

import (
	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
)

// forClient returns the request with the client's ID. A cache miss counts toward the limit of new
// keys.
func (req UpdateRequest) forClient(client access.Client) UpdateRequest {
	req.Client, req.New = client.ID(), req.Reason == schemas.CacheMiss
	return req
}

// flightKey is the singleflight key: concurrent requests of one client for one entity share one
// result. Different clients do not share a result, because a limit may refuse only one of the
// clients.
func (req UpdateRequest) flightKey() string { return req.Entity.String() + " " + req.Client }

// recordRefusals counts, in the metrics, each request that the producer refused. It adds the
// problem response for the client to the result of each refused request.
func (q *requester) recordRefusals(results []EnqueueResult) []EnqueueResult {
	for i, result := range results {
		results[i] = q.recordRefusal(result)
	}
	return results
}

func (q *requester) recordRefusal(result EnqueueResult) EnqueueResult {
	if result.Refused != nil {
		result.refused = q.limiter.RecordRefusal(*result.Refused)
	}
	return result
}
