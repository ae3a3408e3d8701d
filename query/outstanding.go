package query

import (
	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
)

// of returns the wish as one of this client. A wish for an entity without a snapshot is
// for a new key.
func (w UpdateRequest) of(who access.Client) UpdateRequest {
	w.Client, w.New = who.ID(), w.Reason == schemas.CacheMiss
	return w
}

// flight names the wishes that are one while the first is under way: those of one client
// for one entity. What is refused to a client must not be refused to another.
func (w UpdateRequest) flight() string { return w.Entity.String() + " " + w.Client }

// refuse makes a problem of each answer that is beyond its client's bound.
func (s *Server) refuse(answers []EnqueueResult) []EnqueueResult {
	for i, a := range answers {
		answers[i] = s.refused(a)
	}
	return answers
}

func (s *Server) refused(a EnqueueResult) EnqueueResult {
	if a.Refused != nil {
		a.refused = s.meters.RecordRefusal(*a.Refused)
	}
	return a
}
