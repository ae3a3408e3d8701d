package schemas

import "time"

// Verdict says whether a request still needs its fetch.
type Verdict string

// The verdicts. Satisfied: a fetch begun after the request is stored.
// Superseded: the request's HIGH twin is in its topic and will do.
const (
	Proceed    Verdict = "PROCEED"
	Satisfied  Verdict = "SATISFIED"
	Superseded Verdict = "SUPERSEDED"
	// Failed: a fetch begun after the request failed, and what follows from that
	// is written down.
	Failed Verdict = "FAILED"
)

// End is how a request ended, as it is written down for those that come after.
type End struct {
	Entity Entity
	// Number is the fetch's, or the request's version if nothing was fetched.
	Number int64
	// Satisfied: what the requests asked for is stored. A dead letter satisfies
	// nobody.
	Satisfied bool
	// Hold is the reason for which nobody asks again for HoldFor; empty: no hold.
	Hold    string
	HoldFor time.Duration
}

// The reasons for which an entity is held.
const (
	HoldAbsent    = "ABSENT"    // the upstream said that there is no such entity
	HoldRetrying  = "RETRYING"  // its last request failed, and a retry is scheduled
	HoldFailed    = "FAILED"    // its last request became a dead letter
	HoldSuspended = "SUSPENDED" // so did the ones before; it is lifted by hand
)
