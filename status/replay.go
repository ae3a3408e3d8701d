package status

import (
	"time"

	"github.com/freshet/freshet/store"
)

// ReplayOutcome is the outcome of the replay of one dead letter: the result of the last fetch of its
// entity.
type ReplayOutcome string

// The values of ReplayOutcome.
const (
	ReplaySucceeded   ReplayOutcome = "succeeded"    // the entity was fetched after the replay began
	ReplayFailedAgain ReplayOutcome = "failed again" // the last fetch since the start of the replay has failed permanently
	ReplayPending     ReplayOutcome = "pending"      // no fetch has ended since, or a retry is due
)

// OutcomeOfReplay returns the outcome of a replay that began at a time, from the present state and
// failure of the entity. A failure and a success since then are compared by their versions.
func OutcomeOfReplay(began time.Time, s store.State, f store.Status) ReplayOutcome {
	failed := f.State != "" && !f.UpdatedAt.Before(began)
	succeeded := s.Version > 0 && !s.CheckedAt.Before(began)
	switch {
	case failed && (!succeeded || f.Version > s.Version):
		if f.State == store.Retrying {
			return ReplayPending
		}
		return ReplayFailedAgain
	case succeeded:
		return ReplaySucceeded
	}
	return ReplayPending
}
