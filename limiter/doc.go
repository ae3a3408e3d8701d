// Package limiter gives out permits: the right to send one upstream call within
// a stated short time. However many processes ask, the calls that reach the
// upstream never exceed its limit in any sliding window, HIGH always finds the
// share that is kept for it, and a saturated budget is used up.
//
// # Lanes of time slots
//
// The budget of a source is partitioned into lanes, each a GCRA with an interval
// T and a small burst B: high is for HIGH alone, shared for both, low (optional)
// for LOW alone. HIGH takes the earlier slot of high and shared, LOW the earlier
// of shared and low; so LOW can never spend HIGH's share. The lanes' state is one
// string in Redis, changed by one script (lua/limiter_acquire.lua) that judges by
// Redis' clock. A process has one call to Redis under way; all goroutines that
// wait ride the next one, first come first served in their lane, and each sleeps
// once, until its slot. A slot lies at most a horizon ahead; demand beyond it is
// told when to come back, behind those told before.
//
// # The bound
//
// In any closed window of length W a lane holds at most B + ⌊W/T⌋ slots. A permit
// may be spent from its slot until V after it, by the local monotonic clock taken
// before the call to Redis; the network adds up to J. So the arrivals of a second
// come from slots of a window of 1 s + V + J, and at most
//
//	Σ over lanes: B + ⌊(W + V + J) / T⌋
//
// of them fall into any window W at the upstream. NewQuota refuses a
// configuration for which this sum exceeds the limit.
//
// # Lost state
//
// An empty state, another one's, or one from before a restart or failover starts
// quiet: no slot for W + V + J + horizon, so that permits of the lost state have
// lapsed and their arrivals left the window before the first new one.
//
// # Failing closed
//
// Without Redis there is no permit. A call to Redis has its own short deadline
// and is never repeated by the client library; while Redis is gone one probe a
// second goes out, not one a waiter.
package limiter
