// Package producer enqueues update requests. It coalesces the requests for an entity in
// Redis and publishes at most one record for them to Kafka. It is the only package that
// writes to the request topics: reads, the scheduler, retries, triggers and replays all
// enqueue here.
//
// # Coalescing
//
// Redis has one hash per entity. It contains a lock, a hold, a cool-down and two numbers: `ver` is
// the highest number given to a request or fetch so far, and `done` is the highest number that a
// fetch has satisfied. The lock belongs to the request that covers later requests. Each request
// that gets its own record takes the lock and a new number. A number is at least the time of Redis
// in milliseconds, and higher than all earlier numbers of the entity.
//
//	state of the lock    event                                  next state   outcome
//	none                 request                                pending      PUBLISHED
//	pending              Kafka acknowledges the record          confirmed
//	pending              the publish fails                      none
//	pending              12 s pass                              none
//	pending              request in the same lane, or LOW       pending      PENDING
//	confirmed            request in the same lane, or LOW       confirmed    ALREADY_PROCESSING
//	pending, confirmed   HIGH request, the lock is LOW          pending      UPGRADED
//	pending, confirmed   strict request, a fetch has begun      pending      PUBLISHED
//	pending, confirmed   settled with this or a higher number   none
//	confirmed            30 s (HIGH) or 60 s (LOW) pass         none
//
// A strict request (an explicit refresh, a trigger) needs a fetch that begins after it. A
// relaxed request (a read) is also satisfied by a fetch in progress. A hold refuses all
// requests except explicit refreshes, retries and replays (HELD). A cool-down refuses
// explicit refreshes (COOLING).
//
// Example, with the Redis clock at 1000 ms at the start:
//
//	clock   event                              hash afterwards               outcome
//	1000    LOW prefetch                       lock LOW 1000, pending        PUBLISHED
//	1003    Kafka acknowledges                 lock LOW 1000, confirmed
//	1040    read of the stale snapshot, HIGH   lock HIGH 1040, pending       UPGRADED
//	1042    Kafka acknowledges                 lock HIGH 1040, confirmed
//	1050    100 more reads                     unchanged                     ALREADY_PROCESSING
//	1300    the worker begins the fetch        ver 1300
//	1500    the worker settles the fetch       no lock, done 1300
//	1600    a worker reads LOW record 1000     unchanged                     SATISFIED, no fetch
//
// # Failures
//
// A lock expires, so a producer or worker that crashes delays an entity by at most 60 s.
// While Redis fails, a circuit breaker rejects requests at once with ErrRedis. If Kafka is
// slow, the buffer fills and requests are rejected with ErrBufferFull before they take a
// lock.
//
// # Limits per client
//
// A request that would be published counts toward the Bound of its client, which all
// processes share. If it exceeds the Bound, it is refused and its lock is rolled back.
package producer
