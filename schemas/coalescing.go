package schemas

import "time"

// Verdict says whether a request still needs a fetch.
type Verdict string

// The verdicts. Proceed: the request still needs a fetch. Satisfied: a fetch that began after the
// request is stored. Superseded: a HIGH request for the same entity was published and covers this
// one. Failed: a fetch that began after the request failed, and the failure is stored.
const (
	Proceed    Verdict = "PROCEED"
	Satisfied  Verdict = "SATISFIED"
	Superseded Verdict = "SUPERSEDED"
	Failed     Verdict = "FAILED"
)

// End is the way in which a request ended. It is stored in Redis, so that later requests of the
// entity are checked against it.
type End struct {
	Entity Entity
	// Number is the number of the fetch, or the request's version if nothing was fetched.
	Number int64
	// Satisfied is true if the requested content, or its absence, is stored. A dead letter
	// satisfies no request.
	Satisfied bool
	// Hold is the reason why new requests for the entity are rejected for HoldFor; empty for none.
	Hold    string
	HoldFor time.Duration
}

// The reasons of a hold.
const (
	HoldAbsent    = "ABSENT"    // the upstream answered that the entity does not exist
	HoldRetrying  = "RETRYING"  // the entity's last fetch failed, and a retry is scheduled
	HoldFailed    = "FAILED"    // the entity's last request became a dead letter
	HoldSuspended = "SUSPENDED" // several of the entity's requests in a row became dead letters; see "suspended" in docs/concepts.md
)
