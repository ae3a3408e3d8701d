// Package source fetches the entities of one upstream API. It builds HTTP requests from
// configuration and sends each one with a permit from its caller. It classifies the responses and
// extracts canonical JSON, which can be hashed and stored.
//
// A source is described by configuration alone. The package does not use the broker, Redis or
// the database, and it never sends a request without a permit.
//
// # The path of one fetch
//
//	step            | what happens                                           | can fail with
//	Source.Plan     | fill placeholders, choose candidate credentials        | error: the request is invalid
//	Permits.Acquire | wait for the right to send, one permit per call        | error: no call is sent
//	Permit.Spend    | connection open, permit taken, credential added        | error: nothing is sent
//	Source.Fetch    | follow one redirect and all pages, read the bodies     | Outcome.Err
//	Source.Read     | decompress, classify, validate, extract, redact, hash  | Outcome.Class and Err
//	Source.Inspect  | describe the responses for a person (package trial)    | never
//
// # States of a permit
//
//	acquired --Spend--> spent --Written, Answered--> --Finished--> done
//	acquired --Release--> returned to the limiter
//
// Spend runs when a connection is open, so that the time between the permit and the first byte
// is short. The transport may resend a request on a new connection; then the first permit is
// finished and a second one is acquired and spent. Until Spend the context of Fetch cancels the
// call; after Spend only Config.Timeout does, because the upstream has counted the call.
//
// # Classes
//
//	class        | from                                   | content  | typical consequence
//	auth         | 401, rules                             | no       | the credential is blocked
//	maintenance  | rules                                  | no       | the source is blocked
//	quota        | 429, 403 with Retry-After, rules       | no       | Block says which calls wait
//	transient    | 408, 425, 5xx, timeout, broken body    | no       | scheduled retry
//	bad-content  | other 2xx, invalid or too large bodies | no       | dead letter
//	permanent    | other statuses, rules                  | no       | dead letter
//	not-ready    | rules                                  | no       | retry later
//	handle       | rules                                  | none     | alias checked again (Param.From)
//	not-found    | 404, 410, rules                        | none     | recorded as not found
//	not-modified | 304                                    | stored   | check time updated
//	ok           | 200                                    | new      | hash compared, then stored
//
// An entity with several documents has the most severe class, which is the first one in this
// table. The consumer decides about the consequence.
//
// # Example
//
// A facet has the documents "basic" and "stat", and the limiter issues permits for both at once.
// "basic" is answered with 200 after 80 ms, "stat" with 429 and Retry-After: 3 after 30 ms. Both
// calls are already sent, so both permits are spent and finished. The outcome has the class
// quota, Block "source" and RetryAfter 3 s; the content of "basic" is discarded. Had "basic"
// still waited for its permit at 30 ms, it would not have been sent at all.
package source
