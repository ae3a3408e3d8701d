package query

import (
	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
)

// forClient returns the request with this client. A cache miss counts as a new key.
func (w UpdateRequest) forClient(who access.Client) UpdateRequest {
	w.Client, w.New = who.ID(), w.Reason == schemas.CacheMiss
	return w
}

// flightKey is the singleflight key: concurrent requests of one client for one entity share one
// result. Clients do not share it, because only one of them may be refused.
func (w UpdateRequest) flightKey() string { return w.Entity.String() + " " + w.Client }

// recordRefusals sets the problem of each refused result.
func (s *Server) recordRefusals(answers []EnqueueResult) []EnqueueResult {
	for i, a := range answers {
		answers[i] = s.recordRefusal(a)
	}
	return answers
}

func (s *Server) recordRefusal(a EnqueueResult) EnqueueResult {
	if a.Refused != nil {
		a.refused = s.limiter.RecordRefusal(*a.Refused)
	}
	return a
}
