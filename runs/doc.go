// Package runs fetches many entities and collections as one unit of work with one end. A run has a step for
// each of them. A step of a collection can add a step for each item of the collection: a run that begins with
// one user can fetch all repositories of the user, and the issues of each repository. The statements run in
// PostgreSQL and SQLite, through store.Tx.
//
// # States
//
// A run is inserted with its first steps in one transaction, so a run without its steps does not exist.
//
//	run                                 | why
//	------------------------------------|------------------------------------------------------------------
//	RUNNING (waiting)  → RUNNING        | the earlier run of the same scope has ended (overlap: buffer-one)
//	RUNNING            → COMPLETED      | no step is open, and at most `tolerate` of the steps have failed
//	RUNNING            → FAILED         | no step is open, and more steps have failed; or the deadline passed
//	RUNNING            → CANCELLED      | an operator, or a later run with overlap: cancel-other
//	COMPLETED, FAILED  → RUNNING        | an operator retries the failed steps: the next attempt
//
//	step                                | why
//	------------------------------------|------------------------------------------------------------------
//	OPEN               → DONE           | the entity was fetched since the start of the run, and the
//	                                    | steps of all items are inserted
//	OPEN               → NOT_FOUND      | the upstream answered 404 since the start of the run
//	OPEN               → FAILED         | a request became a dead letter since the start of the attempt, or the
//	                                    | deadline passed
//	OPEN               → CANCELLED      | the run was cancelled
//	FAILED             → OPEN           | a retry of the run
//
// # How a step ends
//
// The end of a step is derived from stored data and never from a message: the snapshot, the collection or the
// failure status of the entity. So a lost message delays the end, and a message that arrives twice changes
// nothing. A Poller claims the steps that are due, reads this data, and ends the step or requests the next
// page:
//
//	due → requested   the poller moves due_at by a lease and enqueues an update request with the run's id
//	requested → due   the worker has finished the record of the request; or the lease ended
//	due → ended       the stored data says so
//
// If a record or the worker's notification is lost, the step is due again after the lease.
//
// # Invariants
//
//   - Run.Open equals the number of OPEN steps (Verify).
//   - One transaction ends steps, adds steps, changes the counters, and ends the run with its outbox event if no
//     step is left. It locks the run's row first, so the ends of two steps happen one after another.
//   - At most Definition.Parallel steps of a run are requested at the same time.
//   - A step with children stays OPEN until all of them are inserted.
//   - A page of a run is stored only while its step is OPEN: the transaction that stores the page locks the
//     step's row. So a cancelled run stores no further page.
//   - The event of an end is published at least once for each attempt, always with the same content.
//
// A fetch of an entity that is no collection is stored also if its run was cancelled meanwhile, because other
// requests can be coalesced with it. If a page of a run failed and its retry is scheduled, the retry continues
// the walk of the collection, also if the run was cancelled.
//
// # Example
//
// A run has the steps user and repos for the key octocat, and issues for each item of repos. The run begins
// with 2 open steps. The last page of repos is stored; 60 repositories are in the collection, 10 of them forks
// (unless: [fork]). One transaction adds 50 steps and ends the step repos: open = 2 + 50 - 1 = 51. When the
// last step ends, the same transaction sets the state COMPLETED and writes the event.
package runs
