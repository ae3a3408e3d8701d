package access

import (
	"fmt"
	"time"
)

// Refusal is why a client may not have an entity fetched now, by the counts that all
// processes share.
type Refusal struct {
	// NewKeys: the client asks for too many entities of which nothing is stored. Otherwise
	// too many of its requests are outstanding.
	NewKeys bool
	Max     int           // outstanding requests, or new keys at once
	Window  time.Duration // in which Max new keys are restored
	After   time.Duration // when to ask again
}

// Detail is the sentence for the client.
func (r Refusal) Detail() string {
	if r.NewKeys {
		return fmt.Sprintf("You ask for more new entities than %d at once, and as many in %v. Wait, and ask for less.", r.Max, r.Window.Round(time.Second))
	}
	return fmt.Sprintf("As many of your requests are outstanding as your share allows now: %d. Wait until some have ended.", r.Max)
}

// RecordRefusal counts a refusal and returns its problem, a *problem.HTTPError.
func (m *ClientLimiter) RecordRefusal(r Refusal) error {
	limit, code, window := "outstanding", "too-many-outstanding", time.Duration(0)
	if r.NewKeys {
		limit, code, window = "new-keys", "too-many-new-keys", max(r.Window, time.Second)
	}
	if m != nil {
		m.refused.WithLabelValues(limit).Inc()
	}
	return limitExceeded(code, limit, r.Detail(), r.Max, window, r.After)
}
