// Package outbox delivers the events of the transactional outbox: it publishes stored changes on
// their source's change topic, and requests refreshes of the entities that the changes trigger:
// other facets of the same key, the targets of links in the content, and entities that are computed from
// the changed one. The events are written by the transaction that stores the change
// (store.OutboxEvents), so that no event exists without its change and none is lost.
//
// # States of an event
//
//	state      next state   when
//	stored   → claimed      it is due; a relay claims it for 30 s (the lease)
//	claimed  → deleted      Kafka has acknowledged its change, and its triggers are requested or skipped
//	claimed  → published    its change is acknowledged and a trigger is left
//	claimed  → stored       delivery failed or the relay crashed; due again when the lease ends
//	published → deleted     its triggers are requested or skipped; the change is not published again
//
// Invariants:
//   - An event is deleted only after Kafka has acknowledged everything that it causes. So each
//     change is published, and each trigger requested, at least once.
//   - The triggers of a change are requested after the change is published.
//   - A trigger with a quiet time fires when no change of its entity was stored for that time. It
//     fires at its maximum delay after the first change at the latest. All these changes cause one
//     refresh.
//   - The change of an input of a derived facet stores an event of the derived entity, which is due
//     Trigger.Every after the first change. Changes of all inputs until then cause one computation.
//   - A trigger is skipped if its target entity was checked within the trigger's setting `backoff`.
//     If the target has a hold, the trigger counts as requested although nothing is enqueued. The
//     target is refreshed later: by its scheduled retry, or by the next request after the hold.
//   - The event that requests the next page of a collection is kept after its delivery, and is due again ten
//     minutes later. The transaction that stores the page deletes it. So a lost record does not end a walk.
//   - A link is skipped if its target is fresh. Its request is relaxed, and has the lowest depth of all
//     links to the target that are delivered together.
//
// Example: facet progress triggers facet general, with a quiet time of 30 s and a maximum delay of
// 5 min. Progress of case 42 changes at 12:00:00 and again at 12:00:20. Both changes are
// published at once. Facet general is requested once, at 12:00:50. If Kafka is down at 12:00:50, the
// event is delivered again when its lease ends, 30 s later.
package outbox
