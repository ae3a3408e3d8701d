package access

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/problem"
)

// Refusal describes a limit, shared by all processes, that an update request exceeds.
type Refusal struct {
	// NewKeys is true if the client exceeded the limit of new keys, and false if it exceeded its
	// share of outstanding requests.
	NewKeys bool
	Max     int           // maximum number of outstanding requests or, if NewKeys is true, of new keys requested at once
	Window  time.Duration // a client that has requested Max new entity keys may request Max further ones after this time
	After   time.Duration // time until the client may retry
}

// Detail returns the sentence that explains the refusal to the client.
func (r Refusal) Detail() string {
	if r.NewKeys {
		return fmt.Sprintf("You exceeded the limit of new entities: %d at once and per %v. Retry later, or request fewer.", r.Max, r.Window.Round(time.Second))
	}
	return fmt.Sprintf("Your outstanding requests have reached your current share, %d. Wait until one ends.", r.Max)
}

// RecordRefusal counts a refusal in the metrics, and returns the *problem.HTTPError for the
// client.
func (m *ClientLimiter) RecordRefusal(r Refusal) error {
	limit, code, window := "outstanding", problem.TooManyOutstanding, time.Duration(0)
	if r.NewKeys {
		limit, code, window = "new-keys", problem.TooManyNewKeys, max(r.Window, time.Second)
	}
	if m != nil {
		m.refused.WithLabelValues(limit).Inc()
	}
	return limitExceeded(code, limit, r.Detail(), r.Max, window, r.After)
}
