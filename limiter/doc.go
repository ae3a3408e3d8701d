// Package limiter gives out permits: the right to send one upstream call within
// a stated short time. However many processes ask, the calls that reach the
// upstream never exceed its limit in any sliding window or calendar day, HIGH
// always finds the share that is kept for it, and a saturated budget is used up.
//
// # Policies
//
// All policies of a source are taken together by one script, or not at all
// (lua/limiter_acquire.lua), on one string in Redis and by Redis' clock:
//
//   - A window of many calls is partitioned into lanes, each a GCRA with an
//     interval T and a small burst B: high is for HIGH alone, shared for both, low
//     (optional) for LOW alone. HIGH takes the earlier slot of high and shared, LOW
//     the earlier of shared and low; so LOW can never spend HIGH's share.
//   - A window of up to 99 calls is an exact ring of the last slots; LOW is let in
//     while HIGH's reserve stays free.
//   - A calendar day is a count. LOW's pace is what the day has left, without what
//     is kept for HIGH, over the seconds that it has left; HIGH may go to the end.
//     For ten seconds around midnight a call counts in both days, for the upstream's
//     clock is not ours.
//
// A process has one call to Redis under way. A lone caller makes it itself; those
// who come meanwhile ride the next one together: clients in turn, and the calls of one
// client first come, first served (but for those whose last call failed: AcquireRetry).
// Each sleeps once, until its slot. A slot lies at most a horizon ahead; demand beyond it is told when
// to come back, behind those told before. More than horizon / T lone waiters of as
// many processes (52 of LOW at 350/s) are each told so once, and then cost two calls
// a permit.
//
// # Buckets
//
// A policy with a scope, a unit or costs, or of another kind, is kept in buckets of their
// own, one for each value of its scope: a sliding-window log, a bucket that is restored, a
// gap, what answers tell is left (learned), places for calls under way, an error budget. What
// may be stopped alone, such as a credential, is one too. Calls that are charged alike are a
// class and wait in one line; the script gives them slots that all their buckets and the
// policies above allow, with the credential that can go first, and of several with the one
// that has most left, or gives none.
//
// A learned budget lets a call go while the least that was told in its window, without
// what is under way, is enough. A place has a holder until its call has ended or its lease
// has; who waits for one stands in line with the other processes, HIGH first, and is told
// when it may have it. What a call really cost is settled when it has ended; one of which
// nothing is heard has cost what was thought.
//
// # Windows of units
//
// A sliding-window log keeps a window of units exactly, at any cost of a call. An entry is a
// slot and the units of its calls. A call gets the slot at which enough older units have left
// the window. A window of more than 200 units rounds slots up to a 200th of its
// length, so its log has a bounded size. A pace spreads the calls over the window. It never
// holds a call back for its cost: it has the next call wait for that time.
//
//	limit 500 in 10 s, 100 units a call: a pace of 100·20.5 ms = 2.05 s, 4.9 calls a window
//	limit 500 in 10 s, 300 units a call: the log has room for one, 1 call in 10.05 s
//
// An estimate that an answer corrects leaves the log at its own slot. Such a window has no
// pace: estimates would hold back calls that the limit has room for.
//
// # The bound
//
// In any closed window of length W a lane holds at most B + ⌊W/T⌋ slots, a ring
// its limit. A permit may be spent from its slot until V after it, by the local
// monotonic clock taken before the call to Redis; the network adds up to J. So the
// arrivals of a second come from slots of a window of 1 s + V + J, and at most
//
//	Σ over lanes: B + ⌊(W + V + J) / T⌋
//
// of them fall into any window W at the upstream. NewQuota refuses a configuration
// for which this sum exceeds the limit. J is measured too; where it is greater than
// configured, the rate is lowered until the sum holds again.
//
// # Lost state
//
// An empty state, another one's, or one from before a restart, a failover or a
// step of Redis' clock starts quiet: no slot for W + V + J + horizon (of W at most
// a second for lanes, which start empty; all of it for rings), so that permits of
// the lost state have lapsed and their arrivals left the window before the first
// new one. Backward steps the script sees itself; forward ones are seen by whoever
// compares Redis' clock with its own monotonic one between two calls, and a step
// shorter than the round trips between is not. A day's count is written down every
// few seconds and resumes from there, as if the time since had been used in full.
//
// # Brakes, probes, stops and changes
//
// A refused call brakes everybody: nothing ahead of the brake's end is granted, and
// what was reserved lapses within horizon + V. Then the rate rises from half to the
// whole within ten seconds.
//
// For a sick upstream there is the probing stop (Probe): all calls stop, but for one
// at a time, of whichever process asks first, that probes; the first after a pause,
// the next after pauses that double. The script sets the next pause when it grants a
// probe, so one that fails, or whose process dies, need not be told of. It ends with
// the first healthy answer to what was sent after it began (Lift), as a brake ends.
// Every answer of the script says whether one is in force, also to who was granted
// the probe; who is refused asks twice a second, and so learns of the end. The later
// of a brake's end and a pause's holds; an emergency stop wins over both. It outlasts
// a failover as a brake does, and is forgotten where the state can't be read.
//
// What is changed of a quota while it runs has a revision, and the newest one known
// to Redis is in force for all; where callers of one revision differ, as while a
// release rolls out, each gets what all of them allow.
//
// # Failing closed
//
// Without Redis there is no permit. A call to Redis has its own short deadline
// and is never repeated by the client library; while Redis is gone one probe a
// second goes out, not one a waiter. Nor is there one before the settings were
// read, or when what a day has used could not be written down for a minute.
package limiter
