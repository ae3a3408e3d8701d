// Package scheduler decides when entities are prefetched, and enqueues their requests within a call
// budget. Policy, Budget, Price and Survey use no clock, random numbers or I/O: the time and all
// measured values are arguments, and a hash of the entity replaces random numbers. So the command
// simday can simulate days with the code of the real scheduler.
//
// A Scheduler repeats one step (tick):
//
//  1. Take over claims whose lease has expired, and enqueue their requests.
//  2. Budget.Allowance: how many entities may be enqueued now?
//  3. Claim that many due entities. Policy.Next decides on each in the same transaction.
//  4. Enqueue the requests in the LOW lane, renewing the lease, and finish the claim.
//  5. If budget is left, continue the Survey: make later entities due earlier.
//  6. Every minute, one scheduler of the source adjusts the Price (adaptive mode only).
//
// The slots of an entity are its regular due times in the mode tiers: one in each interval, at an
// offset that a hash of the entity determines. So the entities of a tier are spread evenly.
//
// A due entity has one of these outcomes:
//
//	outcome    condition                               next due time
//	requested  none of the below                       one interval later
//	fresh      checked within half an interval,        after the cool-down,
//	           or within its cool-down                 at most an interval after the check
//	held       a failure holds it, or it is suspended  after the hold and a backoff
//	inactive   disabled, or excluded by active         after an interval, at least cold's
//	not-ready  before the facet's notBefore            within 10 min of notBefore
//	off        its facet is not prefetched             24 h later
//
// Example: a facet with the tier intervals hot 1 h, warm 6 h and cold 24 h. An entity with 30 reads
// a day is hot, and its slot is, say, 17 minutes past each hour. A claim at 10:17:20 makes it due
// at 11:17. If a reader refreshes it at 10:50 and the cool-down is 30 min, the claim at 11:17 skips
// it as fresh: it was checked 27 min ago, less than half an interval. It is due again at 11:33,
// halfway between the check and its slot at 12:17.
//
// Invariants:
//
//   - A new due time is later than now, by at most one and a half of the longest interval plus the
//     time from midnight to notBefore.
//   - No entity is due before the facet's notBefore, also on days of 23 and 25 hours. Due times in
//     that period are spread over the time after it.
//   - An entity returns to its own slot, however late it was claimed, and two claims are at least
//     a third of its interval apart. So entities that were registered together, or a backlog, do
//     not become due together.
//   - A failure changes only the due time of its entity, by the backoff.
//   - Only reads move an unpinned entity between tiers. The number of reads a day at which an
//     entity leaves a tier is half the number at which it enters the tier.
//   - In the adaptive mode an interval is within its bounds for any history. Of two entities that
//     differ only in reads, the one with more reads is checked at least as often.
//   - The price rises while more entities are due than enqueued, and falls while budget is idle.
//     One adjustment changes it by at most a constant factor, and not at all if every interval is
//     at a bound.
//   - The calls enqueued in any period are at most rate × length plus the calls of 5 s (a burst).
//     The topic never contains more than the work of one minute.
package scheduler
