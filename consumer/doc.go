// Package consumer turns records into fresh snapshots: it reads one lane of one
// source, and for each record waits for a permit, fetches, compares, writes, and
// only then commits. HIGH and LOW are two workers with their own groups and
// clients. What it needs of the rest of the system stands in deps.go.
//
// # Health: whose failure is it
//
// A client decides which keys are fetched, so no answer to one key may stop a source
// (semantics §5, Evidence). An entity is known-good if it has a stored snapshot or was
// answered with content; up to 16 of them are remembered for each facet.
//
// Invariants:
//   - A breaker opens only if known-good entities fail too. Where none is known, at least
//     five distinct entities must fail, and more than half of the last 20 calls.
//   - A failure is counted against an entity only if another entity of the facet was
//     answered well by a call sent after that failure was seen: then it is confirmed.
//     (A readable 4xx where no known-good entity exists is counted too.)
//   - No dead letter is written for a failure that is not confirmed.
//   - While the source's breaker is open no record occupies a slot (Config.InFlight): a
//     record that was not called waits without one and is not committed; one whose call
//     failed becomes a durable retry (status RETRYING) and is committed.
//
// Evidence and what follows:
//
//	answer                                        | evidence about    | if confirmed own                 | if known-good entities fail too
//	transport error, timeout, 5xx                 | the source        | retry row, counted; after the    | breaker opens; retry row,
//	                                              |                   | facet's retries a dead letter    | not counted
//	page in place of JSON, unparsable             | the source        | asked once more, dead letter     | the same
//	other 4xx, content too large or shrunk        | the entity        | asked once more, dead letter     | the same
//	401, rule of class auth                       | credential, scope | retry row, counted; the third is | credential or source stops
//	429 or rule of class quota, no time named     | its scope         | a dead letter                    | the scope backs off
//	quota with Retry-After or a reset header      | its scope         | believed at once: the scope backs off
//	quota with `block: call`                      | the call          | retry row when it may be sent again
//	maintenance                                   | the source        | believed at once: breaker opens
//	ok, not modified, absent, not ready           | a sign of life: breakers close, the failures before are their entities'
//
// A confirming run asks up to two known-good entities, one after the other, and stops at
// the first good answer. One run at a time is made for a facet and for a scope. A natural
// good answer within 50 ms spares it. Confirming calls take permits as all calls do, and
// what they bring is stored.
//
// States of a breaker:
//
//	closed    → open       a confirming run failed (or five entities, where none is known-good)
//	open      → half-open  5 s later, then after 10, 20, 40, 60 s: one call, a probe
//	half-open → closed     the probe was answered well; the rate rises from half
//	half-open → open       it was not
//
// Probes are for known-good entities of either lane; every fourth one, and all where none
// is known, for the oldest first attempt. A facet has a breaker of its own (in this
// process); the source's (in Redis) opens only if no other facet in use was answered well
// within a minute.
//
// Example. A reader asks for 600 made-up keys, each answered 400, beside honest readers.
// None is known-good, so none is evidence against the source. The first failure finds
// no good answer within 50 ms; one confirming call is answered well, which confirms all
// failures seen before it was sent. Each key is asked once more and is a dead letter:
// 1,200 calls, and at most one confirming call for each round trip. Had the upstream
// failed for all, the first failure would have led to two confirming calls, both failed,
// and an open breaker after 3 calls.
//
// # Slots: no client stops the others
//
// A free slot goes to the client that holds the fewest (turns). A record that waits for a
// permit for longer than 1 s, because its credential or endpoint is stopped or the rate is low,
// gives its slot and its memory up if a record of a client with fewer slots needs them
// (preempt), and waits for its client's next turn. So one client's requests may wait for as
// long as their credential is stopped, and the requests of other clients go on.
package consumer
