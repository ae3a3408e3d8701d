-- limiter_buckets: continues limiter_slots. It has what the kinds of buckets share. A bucket is the
-- state of one policy for one value of its scope. A call takes its slot from all its buckets and from
-- the policies of the whole source, or from none.
--
-- KEYS[2k], KEYS[2k+1]  state of bucket k, and its calls in flight (the same key with
--          the suffix :calls)
-- ARGV[6]  an object (JSON):
--   policies  per bucket: the number of its policy in the caller's quota
--   events    a list for each event: name, bucket k, and the values that the bucket's kind expects
--   queues    for each queue lane (1 HIGH, 2 LOW), calls and candidates; a candidate is a list
--             of costs, each with the bucket and the call's units
--   tickets   prefix of the tickets, which are numbered from 1 in the order of grants
--   process   name of the process
--   channel   Pub/Sub channel on which the next process for a free in-flight slot is named
--
-- Returns {now, calls of the day, -5 if the source's breaker is open, -1 if a backoff has not ended
--     with a probe, or else 0, birth of the source's state,
--   per queue: calls granted, us until the next call (0: all granted), reason of the
--     rejection (as in limiter_acquire), per grant: wait in us, candidate, 1 if it
--     probes a breaker of a scope, plus 2 if it is a probe of the source
--   per bucket: units left (-1: unknown), units in flight, time of more units (0:
--     unknown)}
--
-- Each bucket stores the birth of the source's state, which is the time at which that state began.
-- If the stored time differs from the source's birth, the bucket's state was lost.

-- The path of a source with buckets, up to the end of limiter_grant. It is a function, so that the
-- functions of the kinds are not created for other sources.
local function grantBuckets()

local prefix = format('%16d', birth) -- the begin of a bucket's text

-- Sets named numbers of a bucket from its stored text, which begins with the birth of the state.
local function restore(b, names, text)
  for n, name in ipairs(names) do b[name] = number(text, 16 * n + 1) end
end

-- Stores a bucket's text for `life` us.
local function keep(b, life, text)
  redis.call('SET', b.key, prefix .. text .. b.s.kind, 'PX', format('%d', max(1000, ceil(life / 1000))))
end

-- Stores the ticket of a call until its lease expires.
local function keepCall(b, ticket, units, slot)
  redis.call('ZADD', b.calls, format('%.0f', slot + b.s.lease), ticket .. ':' .. units)
end

-- Each kind of bucket is a function that returns the kind's operations:
--   load(b, s, text)          sets the numbers of bucket b of policy s from its stored text. Without a
--                             text the bucket starts as if it were used up, at b.from
--   wait(b, s, units, low, at)  returns the earliest slot at or after `at` that the bucket allows
--                             (huge: unknown), and the share of the bucket that is left
--   charge(b, s, units, slot, low, n)  takes the units of the n-th call that is granted
--   events                    a function for each event, which can give units back
--   save(b, s)                stores the bucket
--   view(b, s)                returns units left (-1: unknown), units in flight, and the time of more
--                             units (0: unknown)
