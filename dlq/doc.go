// Package dlq is the operator's side of the dead letter queue (DLQ). It lists and counts dead
// letters by their rows in the database, and reads single dead letters from Kafka. Its jobs,
// which run in the query services, replay or purge all dead letters that a filter selects.
//
// # States of a job
//
//	state   | event                                 | next state
//	--------|---------------------------------------|-----------------------------------
//	–       | StartJob                              | RUNNING
//	RUNNING | chunk saved, more dead letters match  | RUNNING
//	RUNNING | SetJobState(STOPPED)                  | STOPPED
//	RUNNING | no dead letters left, or Max reached  | DONE
//	STOPPED | a chunk is in flight                  | STOPPED, after reconciling the chunk
//	STOPPED | SetJobState(RUNNING)                  | RUNNING
//
// A job is processed in chunks of at most maxChunk dead letters:
//
//	step | replay                                        | purge
//	-----|-----------------------------------------------|--------------------------------
//	1    | read the chunk's dead letters from Kafka      | –
//	2    | save ChunkStartedAt                           | –
//	3    | enqueue their requests, at most chunkTimeout  | –
//	4    | save position, outcomes, ChunkStartedAt = 0   | save position and outcomes
//	end  | –                                             | delete the handled prefix from Kafka
//
// # Invariants
//
//   - Only the holder of its lease runs a job. The position of the job and the outcomes of its
//     dead letters are saved in one transaction (Store.SaveJobProgress). Each process compares the
//     end of a lease with its own clock, so the clocks of the hosts must agree within half of
//     maxDeliveryTime.
//   - One replay per source runs at a time, because two could select the same dead letters. A
//     stopped replay with a chunk in flight counts as running until the chunk is reconciled.
//   - A job handles only dead letters from before its creation. If a request that the job enqueued
//     is dead-lettered again, the job skips that dead letter.
//   - A replay enqueues each dead letter once. If ChunkStartedAt is set, the next lease holder first
//     reconciles the chunk: it searches the request topic for the chunk's requests. Each request
//     carries the job's ID and the position of its dead letter (schemas.ReplayMark). A holder
//     enqueues nothing after chunkTimeout, so no request can appear after the search.
//   - A purge may select a dead letter that a replay is enqueuing. Both jobs count it as done; the
//     row keeps the outcome that was saved first.
//   - A dead letter that can't be enqueued stays open and is counted by its reason once. The job's
//     position never passes a dead letter whose outcome is unknown.
//   - A purge deletes a record from Kafka only if the record and all records before it in the
//     partition are handled. A record without a row in dead_letters blocks the deletion for
//     missingEntryTimeout, because its row may still be written. After a topic was recreated,
//     nothing is deleted until its end offset has passed the offsets of the old rows.
//
// # Example
//
// A replay of 1,200 dead letters at 100 per second enqueues chunks of 100. It holds its lease for
// 51 s from the start of each chunk (leaseDuration plus the chunk's interval of 1 s). Its process
// is killed in the 8th chunk, after 50 requests. When the lease has expired, another process
// leases the job. ChunkStartedAt is set, so the process searches the request topic, finds 50
// requests of the chunk, and saves their dead letters as replayed: 750 are done. The next chunk
// begins at the unchanged position: the 50 remaining dead letters of the former chunk and the
// following 50. At the end 1,200 are done and each was enqueued once.
package dlq
