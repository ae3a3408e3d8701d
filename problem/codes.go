package problem

// Code identifies a kind of problem for programs. schemas/openapi.yaml (ProblemCode) has the
// meaning of each code and the action for the client.
type Code string

// The codes of all problems.
const (
	// Codes of problems with authentication and access.
	TokenMissing      Code = "token-missing"
	TokenInvalid      Code = "token-invalid"
	TokenExpired      Code = "token-expired"
	InsufficientScope Code = "insufficient-scope"
	CrossSite         Code = "cross-site"
	Forwarded         Code = "forwarded-without-access-control"
	Misdirected       Code = "misdirected"
	KeysUnavailable   Code = "keys-unavailable"
	BadClient         Code = "bad-client"
	BadSignature      Code = "bad-signature"

	// Codes of exceeded limits of a client.
	TooManyRequests    Code = "too-many-requests"
	TooManyWaiting     Code = "too-many-waiting"
	TooManyNewKeys     Code = "too-many-new-keys"
	TooManyOutstanding Code = "too-many-outstanding"
	Cooldown           Code = "cooldown"
	CreditsExhausted   Code = "credits-exhausted"

	// Codes of requests for unknown paths and objects.
	NoSuchPath       Code = "no-such-path"
	MethodNotAllowed Code = "method-not-allowed"
	NoSuchSource     Code = "no-such-source"
	NoSuchFacet      Code = "no-such-facet"
	NotFound         Code = "not-found"
	NoSuchSnapshot   Code = "no-such-snapshot"
	NoSuchKey        Code = "no-such-key"
	NoSuchDeadLetter Code = "no-such-dead-letter"
	NoSuchJob        Code = "no-such-job"
	NoSuchCredits    Code = "no-such-credits"

	// Codes of invalid requests.
	BadKey               Code = "bad-key"
	BadKeys              Code = "bad-keys"
	MissingParams        Code = "missing-params"
	RawFacet             Code = "raw-facet"
	BadWait              Code = "bad-wait"
	BadBody              Code = "bad-body"
	BodyTooLarge         Code = "body-too-large"
	PathTooLong          Code = "path-too-long"
	BadFilter            Code = "bad-filter"
	BadLimit             Code = "bad-limit"
	BadCursor            Code = "bad-cursor"
	BadEntities          Code = "bad-entities"
	BadIfMatch           Code = "bad-if-match"
	BadRequest           Code = "bad-request"
	IdempotencyKeyReused Code = "idempotency-key-reused"
	NotPrefetched        Code = "not-prefetched"
	QuotaRefused         Code = "quota-refused"
	PrefetchRefused      Code = "prefetch-refused"
	UnreadableDeadLetter Code = "unreadable-dead-letter"

	// Codes of conflicts with other requests.
	RevisionConflict Code = "revision-conflict"
	Busy             Code = "busy"
	ReplayRunning    Code = "replay-running"

	// Codes of requests that can't be handled now.
	NotQueued          Code = "not-queued"
	WaitExpired        Code = "wait-expired"
	StoreUnavailable   Code = "store-unavailable"
	ResponseMemory     Code = "response-memory"
	TooManyWaiters     Code = "too-many-waiters"
	LimiterUnavailable Code = "limiter-unavailable"
	LimiterUnsupported Code = "limiter-unsupported"
	DLQCountTimeout    Code = "dlq-count-timeout"
	Internal           Code = "internal"
)
