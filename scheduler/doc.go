// Package scheduler says when an entity is prefetched, and how much may be spent on
// it. This part of it is pure: time and every figure are arguments, and chance is a
// hash of the entity, so that a simulated day runs the code that a real one runs.
//
// Policy.Next is asked, in the transaction that claims an entity that is due, what
// becomes of it. Budget says how many calls may be fed into the LOW topic now. Price
// has the adaptive mode spend what there is. Every rate is in upstream calls.
//
// Invariants:
//   - A new due time is always later than now, and not later than one and a half of the
//     longest interval and the not-before span together.
//   - Nothing is due while the facet's clock is before its not-before time, also on days
//     of 23 and of 25 hours, and nothing piles up when that time has come: what would
//     have been due inside is spread by its slot.
//   - An entity comes back to its own slot, however late it was claimed; between two
//     asks lies at least a third of its interval. So those that were registered at one
//     moment are never due at one moment, and a backlog does not come back as a wave.
//   - Who was checked within half of its interval, or within its cool-down, is not asked
//     for; it comes round before an interval has passed since that check, or, where a
//     cool-down is longer, after it.
//   - Who is held, suspended or switched off is not asked for. A failure moves
//     an entity's due time by its own back-off and no further.
//   - Reads alone move tiers; between going up and coming down again lies a factor of
//     two, so that nothing moves to and fro.
//   - In the adaptive mode an interval lies within its bounds, whatever the history says;
//     of two entities that differ in reads alone the one that is read more is checked as
//     often as the other, or more often.
//   - The price rises while more is due than is asked for, falls while the budget is not
//     used, and no single look at it moves it by more than a factor. It does not move where
//     all intervals are at a bound.
//   - A due time that was planned at a higher price is brought forward once the budget is
//     idle (Survey). An entity that was never fetched is then fetched at once.
//   - What is fed in any stretch of time is at most its rate times its length and a small
//     burst, whatever pauses lie in it, and never more than the horizon's work waits.
package scheduler
