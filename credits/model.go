package credits

import (
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
)

// State is the state of a hold.
type State string

// The states of a hold. A hold leaves Held exactly once.
const (
	Held     State = "HELD"     // the refresh has not ended
	Captured State = "CAPTURED" // the refresh brought a version; its credits are spent
	Released State = "RELEASED" // the refresh was not queued, or it failed; the client got its credits back
	Expired  State = "EXPIRED"  // the refresh had no result in time; the client got its credits back
)

// Kind is the kind of an entry of the ledger.
type Kind string

// The kinds of entries.
const (
	kindGrant   Kind = "grant"
	kindHold    Kind = "hold"
	kindCapture Kind = "capture"
	kindRelease Kind = "release"
	kindExpire  Kind = "expire"
	kindVoid    Kind = "void"
)

// Account has the credits of one client.
type Account struct {
	Client string `json:"client"`
	Plan   string `json:"plan"` // plan of the last refresh; empty before the first one
	// Balance is the number of credits that the client can use now, and Held the number of credits that
	// its open holds have set aside.
	Balance int64 `json:"balance"`
	Held    int64 `json:"held"`
	// RenewsAt is when the client gets the next credits of its plan; nil: with its next refresh.
	RenewsAt *time.Time `json:"renewsAt"`
	// UsedToday is the number of credits that refreshes have spent since midnight UTC. It is
	// set only in accounts that are read for display.
	UsedToday int64 `json:"usedToday"`
}

// Grant is a number of credits that a client got.
type Grant struct {
	ID        string     `json:"id"`
	Client    string     `json:"client"`
	Amount    int64      `json:"amount"`
	Remaining int64      `json:"remaining"` // credits that can still be used
	CreatedAt time.Time  `json:"createdAt"`
	CreatedBy string     `json:"createdBy"` // name of the operator who created it, or plan:NAME
	ExpiresAt *time.Time `json:"expiresAt"` // nil: the grant never expires
	Voided    bool       `json:"voided"`
	Note      string     `json:"note"`
}

// expired reports whether the grant can no longer be used. A voided grant is expired.
func (g Grant) expired(now time.Time) bool { return g.ExpiresAt != nil && !g.ExpiresAt.After(now) }

// Hold is a number of credits that are set aside for one refresh.
type Hold struct {
	ID     string `json:"id"`
	Client string `json:"client"`
	schemas.Entity
	Number    int64     `json:"number"` // number of the update request; 0: Kafka has not acknowledged it
	Amount    int64     `json:"amount"`
	State     State     `json:"state"`
	CreatedAt time.Time `json:"createdAt"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// The errors of the ledger, in addition to errors of the database.
var (
	// ErrNoGrant is returned for a grant that does not exist or is voided.
	ErrNoGrant = errors.New("the grant does not exist or is voided")
	// ErrNoAccount is returned for a client that never had credits.
	ErrNoAccount = errors.New("the client has no credits yet")
)
