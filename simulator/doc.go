// Package simulator is an upstream for trying and testing freshet. It serves documents with the
// shape and size of Nexon's MapleStory API, enforces a quota, injects faults on request, and
// records every arrival.
//
// The recorder shares no code with the limiter. It stores the time of every arrival and counts
// windows over that log, so an error in the limiter is not repeated here.
//
// The query parameter ocid is the key of an entity (a character of the game). The endpoint id returns
// the ocid of a character name; Control.Renames moves a name to another character.
//
// All text in the documents is generated from a seed. Only field names, types, counts,
// repetition and sizes follow the real responses.
//
// # How a call is answered
//
//	state    | condition                            | response
//	recorded | every call whose path is not /_…     | -
//	refused  | the arrival exceeds a limit          | 429 OPENAPI00007, not delayed
//	faulty   | a fault rule matches                 | after the latency, as Kind says
//	invalid  | wrong key, path, method or parameter | after the latency, an error of the API
//	missing  | ocid or name begins with "notfound"  | after the latency, 400 OPENAPI00003
//	served   | otherwise                            | after the latency, 200 and the document
//
// # Operator endpoints
//
//	GET  /_stats     counts, maximum per window; ?since=120&window=1m: without the first 120 arrivals
//	GET  /_arrivals  every arrival as a line of JSON
//	POST /_control   change latency, limits, faults, content
//	POST /_reset     empty the log; limits, faults and content stay
//
// # Example
//
// The limit is 2 arrivals in any second, both ends included. Calls arrive at 0.0 s, 0.4 s, 0.9 s
// and 1.5 s. The third call is refused, because the window from 0.0 s to 0.9 s contains 3 arrivals.
// The fourth call is accepted: the window from 0.5 s to 1.5 s contains only the third and the
// fourth call. Refused arrivals count, so a client that retries at once stays over the limit.
package simulator
