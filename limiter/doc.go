// Package limiter grants permits: the right to send one upstream call within a
// stated short time. However many processes there are, the upstream never receives
// more calls than its limit in any sliding window or calendar day. HIGH always
// gets the share reserved for it, and a saturated budget is used up.
//
// # Terms
//
//	slot       a point in time that Redis reserved for one call
//	permit     a slot that was handed to a caller; it expires 40 ms after the slot (V)
//	horizon    how far in the future a slot can be reserved: 150 ms
//	jitter     the largest difference in network delay between two calls (J)
//	bucket     the state of one policy for one value of its scope
//	queue      the waiters of one lane whose calls cost the same in the same buckets
//	candidate  a credential that a call can use, with the costs of the call
//	ticket     the identifier of a call in flight
//	lease      how long an in-flight slot is held for a call whose end is not reported
//
// # Life of a permit
//
//	Acquire ──► waiting ──► granted ──► Spend ──► call in flight ──► ReportEnd
//	               ▲           │ expired: refunded; the caller calls Reacquire
//	               └───────────┤
//	                           └► Release: the next waiter gets the slot
//
// A process makes one call to Redis at a time. The first caller makes it; callers that
// arrive meanwhile share the next call. Redis returns slots within the horizon. For
// requested slots beyond the horizon it returns the time of the next call. If more than
// horizon/T processes (T: interval of a GCRA partition, see below; 52 processes at 350
// calls/s) wait with one caller each, every permit costs two calls to Redis: the first
// returns only the time of the second. Clients take turns (see fair), and retries get at
// most every fourth permit while other callers wait.
//
// # Types
//
//	Limiter    the methods for callers, and the calls to Redis; its lock guards the parts below
//	allocator  gives granted slots to waiting calls: queues, buckets, active settings, and the
//	           events for the next call to Redis
//	follower   reads the settings, saves the day's count, checks the jitter, receives wake-ups
//	reporter   publishes the report of this process for the view
//
// # Policies
//
// One script, limiter_acquire, applies all policies of a source atomically. It
// reserves a slot in all of them or in none.
//
//	policy                       kept as                               kind
//	window, limit above 99       3 GCRA partitions                     partitions
//	window, limit up to 99       sliding-window log of slots           windowLog
//	calendar day                 counter; LOW is paced                 day
//	window with scope or costs   sliding-window log of units           unitLog
//	restore, error budget        leaky bucket                          leakyBucket
//	minInterval                  time of the next slot                 minInterval
//	reported                     remaining units, as reported          reported
//	window: in-flight            set of tickets, queue of processes    concurrency
//	scope breaker                open or closed, time of next probe    breaker
//
// The last column is the kind of the policy in the quota that the script gets (quotaTerms). The script
// names the numbers of its state (STATE). The breaker of the source and
// the breakers of scopes use the same functions. The function nextTat is the GCRA step of partitions,
// leaky buckets, and paces of logs.
//
// The GCRA (generic cell rate algorithm) partitions of a window are high (HIGH
// only), shared, and optionally low (LOW only). Each has an interval T and a burst B.
// HIGH takes the earlier slot of high and shared, LOW the earlier of shared and low.
// So LOW can never use HIGH's share.
//
// A day counts a call near midnight (10 s before or after) in both days, because the
// upstream's clock differs. LOW's pace is the rest of the day's calls without
// HIGH's reserve, divided by the seconds left. HIGH can use the whole day.
//
// A log of units admits a call at the time at which enough older units have left the window.
// If the window has more than 200 units, these times are rounded up to 1/200 of its length,
// so the log has a bounded size. The pace spreads calls over the window: it delays the next
// call, never the current one. The delay per unit is (W + V + J) / (limit − burst + 1). The
// burst is up to 2 % of the limit. If responses report actual costs, there is no pace,
// because estimates would waste units that the responses refund.
//
//	limit 500 in 10 s, 100 units a call: 10.05 s / 491 = 20.5 ms a unit, one call per 2.05 s
//	limit 500 in 10 s, 300 units a call: the log has room for one, 1 call in 10.05 s
//
// A reported limit admits a call while the lowest remaining value reported in this
// window, minus the units in flight, is sufficient. An in-flight slot is held until
// its call ends or its lease expires. Processes that wait for such a slot are in a queue
// in Redis, HIGH first, and a wake-up message names the first of them.
//
// # Proof of the limit
//
// In any window of length W (both ends included) a partition has at most B + ⌊W/T⌋ slots, and a log
// at most its limit. A permit can be spent until V after its slot. The time is
// measured by the local monotonic clock, from before the call to Redis. The network adds
// at most J. So the calls that arrive within W have slots within W + V + J:
//
//	Σ over partitions: B + ⌊(W + V + J) / T⌋ ≤ limit
//
// NewQuota rejects a configuration that violates this. Example: limit 500 in 1 s, target 450 with 100
// for HIGH, V = 40 ms, J = 10 ms. `high` has T = 10 ms, B = 10: at most 10 + 105 = 115. `shared` has T
// = 2.858 ms, B = 15: at most 15 + 367 = 382. The sum is 497. If the measured jitter exceeds J, the
// proof does not hold, and each process logs a warning with both values.
//
// # States of a source
//
//	flowing ──BackOff──────► backing-off ──pause over, probe not refused──┐
//	   ▲                                                                  ▼
//	   ├── 10 s at rising rate ◄─────────────────────────────────────── ramping
//	   │                                                                  ▲
//	   └──OpenBreaker──────► breaker-open ──CloseBreaker──────────────────┘
//
//	stopped          emergency stop by an operator; has priority over the others
//	quiet-period     the state in Redis was lost
//	restoring-count  the day's count is being read from the database
//	unused           no call yet
//
// BackOff follows a refused call: no slot before the end of the pause is granted. The pause is the
// time that the upstream named, or Config.Backoff. Then one slot is granted, the probe, for both
// lanes of all processes together. If ReportEnd reports that the probe was answered and not refused,
// the rate rises again. The script doubles its own pause when it grants a probe, up to a minute. It
// grants the next probe after that pause. If the refusal of a probe named a time, the next probe comes
// after that time, or after the script's pause of at most 10 s, whichever is longer. A lost probe (its
// process crashed) needs no report. A probe that was not sent is replaced at once. Example: calls are
// refused from 12:00:00 on, each with Retry-After 1 s. Probes go at 12:00:01, :03, :07, :15, :25. A
// pause that is over without a request for a slot is shown as ramping, because a call is possible.
//
// OpenBreaker follows a failure of the whole upstream. Only single probes are sent, one at a
// time over all processes. The script doubles the pause when it grants a probe, so a failed
// or lost probe needs no report. Example: OpenBreaker(5 s, 60 s) at 12:00:00, probes at
// 12:00:05, :15, :35, 12:01:15, and then every 60 s. The first success of a call sent after
// the opening closes the breaker. Every reply of the script contains the breaker's state.
// While the breaker is open, a process with rejected callers calls the script twice a
// second, to detect early that the breaker has closed. If a backoff ends later than the
// breaker's pause, the next probe is sent when the backoff ends.
//
// A backoff and an open breaker survive a failover. When one of them ends, the rate rises
// from half to full in 10 s.
//
// Settings that change while freshet runs have a revision. The newest revision that
// Redis has seen is in force for all processes. If processes have different quotas for
// one revision, for example during a rolling release, the stricter values apply.
//
// # Processes without processor time
//
// A process that does not get enough processor time lets permits expire. It then requests fewer slots,
// so that it spends most of its permits, and other processes get the slots (see heldSlots). If it gets
// processor time again, it requests more slots within seconds.
//
// # Loss of state
//
// State that is empty, malformed, or from before a restart, a failover or a step of Redis'
// clock begins with a quiet period of W + V + J + horizon. For GCRA partitions, which start
// empty, W counts as at most 1 s. So permits of the lost state have expired, and their calls
// have left the window, before the next permit is granted. Only `freshet dev` with a new database needs
// no quiet period (Deps.Unused), because its Redis is new too. The script detects backward steps
// of the clock. Processes detect forward steps by comparing Redis' clock with their own, and
// with the birth of the state (the time at which it began), which is in every reply. A step
// shorter than the round trips in between is not detected. If the state was lost since the
// last call of a process, which is at most 15 s ago, that process does not detect a step
// shorter than the time since that call. The day's count is saved
// every five seconds. After a loss it continues from the saved count plus the calls possible
// at the full rate since that save.
//
// # Failing closed
//
// Without Redis no permit is granted. A call to Redis has a timeout of 150 ms and is not
// retried by the client library. While Redis is down, each process calls it once a
// second. Permits also stop while the settings were never read, or while the day's count
// could not be saved for a minute.
package limiter
