package store

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/schemas"
)

// StatusState is the state of an entity whose refresh failed. The package documentation has the
// transitions.
type StatusState string

// States of a failed entity. A healthy entity has no Status.
const (
	Retrying  StatusState = "RETRYING"  // a retry is due at Status.Until
	Failed    StatusState = "FAILED"    // no further retry; on hold until Status.Until
	Suspended StatusState = "SUSPENDED" // on hold until an operator or a successful fetch lifts the suspension
)

// Status describes an entity's failures since its last success. A write that stores a snapshot or
// a not-found result with at least the status's Version deletes the status in the same transaction.
type Status struct {
	Entity schemas.Entity
	State  StatusState // empty if the entity has no failures since its last success
	// Reason and Error explain the failure to operators. Characters that the database can't store
	// are replaced, and the texts are cut to MaxTextBytes.
	Reason, Error string
	// Rounds counts the failures in a row after which a retry was scheduled. A failure that only
	// delays the request, for example because the upstream's quota is used up, is not counted.
	Rounds int
	// Failures counts how often the state became FAILED.
	Failures int
	// Version is the version that the failed fetch had. A later fetch has a higher version.
	Version int64
	// Until is when the retry is due or its claim ends (Retrying), or when the hold ends (Failed).
	// It is stored in microseconds, as are all times.
	Until time.Time
	// Lane, Params, CorrelationID, TraceParent and Replay are copied from the failed request to the
	// retry's request.
	Lane                       schemas.Lane
	Params                     map[string]string
	CorrelationID, TraceParent string
	Replay                     schemas.ReplayMark
	Depth                      int // copy of schemas.UpdateRequest.Depth
	// DeadAlias is set while the entity waits for a check of an alias with which the upstream did not
	// find the entity: the hash of that alias.
	DeadAlias string
	// Aliases are the states of the entities that the entity takes params from, as its worker has read
	// them. AliasFailures has the version of the stored status of each alias; 0 means that it has
	// none. If a later snapshot or a later failure of one of them is stored, WriteFailure makes the
	// retry due at once. It locks their states, so a concurrent write of one of them is either found
	// by WriteFailure, or makes the retry due itself (AliasUsers). They are not stored.
	Aliases       []State
	AliasFailures []int64
	// AliasUsers are the facets that take a param from this facet. Retries of these facets that wait
	// for their alias become due when this status is written, because a fetch of the alias will not
	// succeed soon. They are not stored.
	AliasUsers []string
	// Since is the time of the first failure after the last success, UpdatedAt the time of the last
	// failure.
	Since, UpdatedAt time.Time
}

// MaxTextBytes is the maximum length of a stored text.
const MaxTextBytes = 4 << 10

// ValidText returns a text that both databases can store, cut to MaxTextBytes. It replaces NUL
// bytes and invalid UTF-8: PostgreSQL would reject the whole row because of them, and the failure
// could never be written.
func ValidText(s string) string { return ValidTextOf(s, MaxTextBytes) }

// ValidTextOf returns a text that both databases can store, cut to `maxBytes`.
func ValidTextOf(s string, maxBytes int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxBytes {
		return s
	}
	for !utf8.RuneStart(s[maxBytes]) {
		maxBytes--
	}
	return s[:maxBytes]
}
