package query

import (
	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
)

// of returns the wish as one of this client. A wish for an entity without a snapshot is
// for a new key.
func (w UpdateRequest) forClient(who access.Client) UpdateRequest {
	w.Client, w.New = who.ID(), w.Reason == schemas.CacheMiss
	return w
}

// flight names the wishes that are one while the first is under way: those of one client
// for one entity. What is refused to a client must not be refused to another.
func (w UpdateRequest) flightKey() string { return w.Entity.String() + " " + w.Client }

// recordRefusals makes a problem of each answer that is beyond its client's bound.
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
