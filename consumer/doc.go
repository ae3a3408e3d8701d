// Package consumer turns update requests into fresh snapshots. A Worker reads one lane of one
// source. For each record it waits for a permit, fetches, compares hashes, stores the result, and
// only then commits the offset. HIGH and LOW are two workers with their own consumer groups and
// Kafka clients. The package declares its dependencies in deps.go.
//
// # Parts of a worker
//
//	group      membership in the consumer group: ledgers of the partitions, commits of offsets
//	intake     decodes polled records, plans their calls, and skips satisfied requests
//	admission  one task of each entity at a time, and slots for clients in turn
//	Worker     attempts of a task: fetch, evaluation of the outcome, next step
//	gates      stop calls while the database is down, a token is missing, or LOW yields to HIGH
//	prober     confirming calls after a failure, and probes while the source's breaker is open
//	writer     writes results in batches
//	settler    scheduled retries, dead letters and skipped requests
//	ends       announces ended requests to Redis and to runs
//	yielder    lets LOW yield to HIGH
//	database   database calls behind a circuit breaker
//	aliases, walks, derivations
//	           facets with aliases, collections, and derived facets
//
// # States of a record
//
//	from                  to                    when
//	read                → waiting for a slot    its entity needs a fetch
//	read                → done                  its request is satisfied, upgraded, or covered by a stored failure
//	waiting for a slot  → in flight             its client's turn has come (slotQueue)
//	in flight           → waiting for a slot    it was preempted while it waited for a permit
//	in flight           → waiting for breaker   the source's breaker opened before a call was sent
//	waiting for breaker → in flight             the breaker closed, or the record is the probe
//	in flight           → stored                the result, a scheduled retry or a dead letter is stored
//	stored              → done                  the request is settled in Redis
//	done                → committed             all earlier records of its partition are done (ledger)
//
// A record that is in flight or waits when its partition is revoked is read again by the next
// owner, unless its call was sent and its request is settled within 10 s.
//
// # States of an alias
//
// A param can take its value from the snapshot of another facet of the same key, its alias. Before a
// fetch, the worker reads the stored aliases of the entity:
//
//	the stored alias is                          | the worker
//	fresh, or was checked during the wait        | fetches the entity with the value
//	missing or older than its freshFor           | requests the alias; the entity waits
//	older than its freshFor, and held            | fetches the entity with the value, until keepFor
//	missing, and held                            | lets the entity wait until the hold has ended
//	not found                                    | stores that the entity is not found, without a call
//	fresh, but the entity was not found with it  | requests the alias, once; the entity waits
//	    and the check did not change the alias   | stores that the entity is not found
//	    and the check changed the alias          | fetches the entity with the new value
//	another one when the result is committed     | stores nothing; fetches the entity again
//
// States of an entity that waits. Its record ends; a retry in the database replaces it:
//
//	from       to         when
//	record   → settled    Kafka has acknowledged the request of the alias
//	settled  → waiting    the retry is stored, with status RETRYING and reason ALIAS
//	waiting  → due        the transaction that stores the alias, or its failure, commits
//	waiting  → due        10 min after the end of the alias's hold: the request of the alias was lost
//	due      → record     the retry is enqueued, strict, in the same lane
//
// Example: a client reads the unknown name "a" at 12:00:00.000. The worker reads the record of
// character/a, requests id/a and stores a retry for 12:10:00. At 12:00:00.200 a worker stores id/a with
// the ocid o1, and the same transaction makes the retry due. At 12:00:00.210 the retry is enqueued, and
// a worker fetches character/a with o1: two calls. If the alias is stored before the retry, the
// transaction that stores the retry finds the later alias and makes the retry due itself.
//
// # Attribution of failures
//
// Clients decide which keys are fetched, so the answer to one key must not stop a source (semantics
// §5, Evidence). An entity is known-good if it has a stored snapshot or was answered with content.
// Up to 16 known-good entities are kept for each facet.
//
// Invariants:
//   - A breaker opens only if known-good entities fail too. If there is none, at least five
//     distinct entities and more than half of the last 20 calls must fail.
//   - A failure counts against its entity only if it is confirmed: another entity of the facet
//     succeeded, with a call that was sent after the failure was observed. (A readable 4xx counts
//     too if there is no known-good entity.)
//   - No dead letter is written for an unconfirmed failure.
//   - While the source's breaker is open no record occupies a slot (Config.MaxInFlight). A record
//     without a sent call waits outside the slots, uncommitted. A record whose call failed becomes
//     a scheduled retry (status RETRYING) and is committed.
//
// Evidence and decisions:
//
//	answer                                     | evidence about    | confirmed as the entity's own    | known-good entities fail too
//	transport error, timeout, 5xx              | the source        | retry, counted; a dead letter    | breaker opens; retry,
//	                                           |                   | after the facet's last retry     | not counted
//	HTML page instead of JSON, unparsable      | the source        | called once more, dead letter    | breaker opens; retry, not counted
//	other 4xx, content too large or shrunk     | the entity        | called once more, dead letter    | breaker opens; retry, not counted
//	401, rule of class auth                    | credential, scope | retry, counted; dead letter      | breaker of the credential or
//	429 or rule of class quota, no duration    | its scope         | after the third                  | source opens; scope backs off
//	quota with Retry-After or a reset header   | its scope         | obeyed at once: the scope backs off
//	quota with `block: call`                   | the call          | retry when the call is allowed again
//	maintenance                                | the source        | obeyed at once: breaker opens
//	ok, not modified, not found, not ready     | success           | closes breakers; earlier failures count for their entities
//
// A confirming run fetches up to two known-good entities, one after the other, and stops at the
// first success. Each facet and each scope has at most one run at a time. An ordinary success
// within 50 ms makes the run's calls unnecessary. Confirming calls need permits like all calls, and
// their results are stored.
//
// # States of a circuit breaker
//
//	closed    → open       a confirming run failed (or five entities, if none is known-good)
//	open      → half-open  after 5 s, then after 10, 20, 40 and 60 s: one call, the probe
//	half-open → closed     the probe succeeded; the rate rises from half of the limit
//	half-open → open       the probe failed
//
// A probe fetches a known-good entity of either lane. Every fourth probe is the first call of the
// oldest record that waits for the breaker. Without a known-good entity, every probe is the first
// call of such a record. The breaker of a facet is kept in the memory of this process, and the
// source's breaker in Redis. The source's breaker opens only if no other facet in use had a good
// answer within a minute.
//
// Example: a client requests 600 keys that do not exist, each answered 400, while other clients
// request existing keys. None of the 600 is known-good, so none is evidence against the source. No
// good answer arrives within 50 ms of the first failure. One confirming call succeeds, which
// confirms all failures observed before it was sent. Each key is called once more and becomes a
// dead letter: 1,200 calls, and at most one confirming call for each round trip. If the upstream
// had failed for all entities, the two confirming calls would have failed too, and the breaker
// would have opened after 3 calls.
//
// # Aliases: params from another facet
//
// A param can come from the stored snapshot of another facet of the same key, the alias
// (source.Param). The next step of a record depends on the alias:
//
//	alias                                          | step          | effect
//	fresh; or checked after the retry was stored   | aliasReady    | the entity is fetched with its value
//	missing, stale, or not found too long ago      | aliasNeeded   | the alias is requested; the record ends with a retry
//	stale, and on hold after a failure             | aliasNeeded   | the entity is fetched with the stored value, until keepFor
//	not found                                      | entityNotFound | the entity is not found for the notFoundFor of the alias
//	the entity is not found with its value         | aliasNeeded   | the alias is checked once (Status.DeadAlias)
//	that check did not change it                   | aliasDead     | the entity is not found
//	changed between the fetch and the commit       |               | nothing is stored; the entity is fetched again
//
// The retry waits for the alias without polling: the transaction that stores the alias, or its failure,
// makes the retry due.
//
// Example: nobody has read the character "a" yet. Its record requests the id of "a" in the same lane and
// ends with the status ALIAS. The record of the id fetches and stores the id, which makes the retry due.
// The retry's record fetches the character. That is two calls, one after the other.
//
// # Slots: no client blocks the others
//
// A free slot goes to the client with the fewest slots (slotQueue). A record may wait for a permit
// for long, for example while the breaker of its credential is open. After 1 s it gives up its slot
// and its memory if a client with fewer slots needs them (preempt), and waits for its client's next
// turn. So the requests of one client can wait for as long as their breaker is open, while the
// requests of other clients continue.
package consumer
