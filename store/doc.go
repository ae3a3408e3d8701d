// Package store defines the stored data of an entity and the rules by which the result of a
// fetch replaces the stored state. Package store/shared has the SQL texts that both databases use.
// The databases are store/postgres and store/sqlite. Both pass the conformance suite in
// store/storetest.
//
// # Tables
//
//	table            | one row per                     | Go type
//	-----------------|---------------------------------|----------------------------
//	snapshot_state   | entity with a stored result     | State
//	snapshot_payload | entity with content             | Snapshot.Payload
//	update_status    | entity whose last fetch failed  | Status
//	outbox           | change not yet delivered        | OutboxEvent
//	entities         | prefetched entity               | prefetched.RegisteredEntity
//	schedule_claims  | batch that a scheduler claimed  | prefetched.Claim
//	dead_letters     | record on a dead-letter topic   | deadletters.DeadLetter
//	dlq_jobs         | replay or purge                 | deadletters.Job
//	settings         | source with an override         | Setting
//	audit            | action of an operator           | AuditEntry
//	quota_usage      | daily quota policy              | Usage
//	api_keys         | API key                         | APIKey
//	tokens           | credential that renews itself   | tokens.Token
//
// # Results of a write
//
// A Write carries the version of its fetch. A write with a lower version than the stored one
// changes nothing. The first matching row applies:
//
//	fetch result | stored state                              | Result
//	-------------|-------------------------------------------|---------------
//	Content      | a higher version                          | Superseded
//	Content      | same hash and extract version             | Touched
//	Content      | content of another extract version        | Rewritten
//	Content      | no content, or another hash               | Changed
//	NotModified  | same hash and extract version, visible    | Touched
//	NotModified  | any other, or a higher version            | BaseMissing
//	KindNotFound | a higher version                          | Superseded
//	KindNotFound | any other                                 | NotFoundStored
//
// The extract version identifies the facet's settings with which content was extracted. Stored
// content is visible to a write if its visibility is empty or equal to the write's.
//
// Example: a fetch with version 7 stores content with hash A (Changed). Version 8 fetches the same
// bytes: only times and version are written (Touched). The result of version 6 arrives late
// (Superseded). Version 9 fetches hash B (Changed); in the same transaction the outbox gets an
// event with Before A and After B.
//
// # States of a failed entity
//
//	no status ──failure──► RETRYING ──last round failed──► FAILED ──failed too often──► SUSPENDED
//	    ▲                      │                             │                             │
//	    └──────────────────────┴─── success with at least ───┴─────────────────────────────┘
//	                                 the status's Version
package store
