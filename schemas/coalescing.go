package schemas

import "time"

// Verdict says whether a request still needs a fetch.
type Verdict string

// The verdicts. Proceed: the request still needs a fetch. Satisfied: a fetch began after the
// request, and its result is stored. Superseded: a HIGH request for the same entity was published
// and replaces this LOW request. Failed: a fetch began after the request and failed, and the
// failure is stored. Cancelled: the run of the request has ended.
const (
	Proceed    Verdict = "PROCEED"
	Satisfied  Verdict = "SATISFIED"
	Superseded Verdict = "SUPERSEDED"
	Failed     Verdict = "FAILED"
	Cancelled  Verdict = "CANCELLED"
)

// End is the way in which a request ended. Settling stores it in Redis, where it determines whether
// other requests of the entity still need a fetch, or are refused because of a hold.
type End struct {
	Entity Entity
	// Number is the number of the fetch, or the request's version if nothing was fetched.
	Number int64
	// Satisfied is true if content or a not-found result was stored for the request. It is false if a
	// retry is scheduled, or if the request became a dead letter.
	Satisfied bool
	// Hold is the reason of the hold that the end of the request starts; empty means that it starts no
	// hold. HoldFor is the duration of the hold.
	Hold    string
	HoldFor time.Duration
}

// The reasons of a hold.
const (
	HoldNotFound  = "NOT_FOUND" // the upstream answered that the entity does not exist
	HoldRetrying  = "RETRYING"  // the entity's last fetch failed, and a retry is scheduled
	HoldFailed    = "FAILED"    // the entity's last request became a dead letter
	HoldSuspended = "SUSPENDED" // several of the entity's requests in a row became dead letters; see "suspended" in docs/concepts.md
)

// HoldAlias is the reason of a hold that the HTTP API does not show: the entity is fetched as soon as the
// facet that it takes a param from was fetched. A request that this hold refuses is answered as
// queued, because the database stores a retry of the entity. HoldAlias is also the reason in the
// entity's status.
const HoldAlias = "ALIAS"
