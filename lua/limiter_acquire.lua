-- limiter_acquire: reserves time slots for upstream calls of one source. Each slot is taken from
-- all policies or from none of them (design, terms and proof: limiter/doc.go).
--
-- KEYS[1]  the source's state, quota:{source}:state
-- ARGV[1]  slots requested for HIGH
-- ARGV[2]  slots requested for LOW
-- ARGV[3]  the quota (JSON); empty: only read the state. It has revision, stopped, horizon and
--          quiet period (us), and policies. A policy has its kind, an id, and numbers:
--          The file of each kind has its numbers.
--          The limiter's type quotaTerms has the same fields. A policy keeps its id as long as
--          its stored numbers can be used.
-- ARGV[4]  three midnights around now in us (JSON); if empty, the reply can be {-1}
-- ARGV[5]  events (JSON); can be missing. An event is a list, its name first:
--          backoff D BASE SENT   the upstream refused the call of slot SENT; pause for
--                                D us (0: not known, BASE is then the first pause).
--                                Then one probe is granted, and further probes after
--                                pauses that double
--          resume SLOT           the probe of this slot was answered and not refused:
--                                end the backoff
--          open FIRST MOST SENT  the call of slot SENT showed that the upstream is
--                                unhealthy; open the circuit breaker. The first probe
--                                is after FIRST us, later ones after pauses that
--                                double up to MOST us
--          close SENT            the call of slot SENT succeeded: close the breaker if
--                                it opened before SENT
--          refund SLOT           the slot was not used
--          used END N AT RATE MOST  saved count: the day until END had N calls at AT,
--                                and since then at most MOST plus RATE per second
--          step NOW              Redis' clock was set forward, detected when it showed NOW
--          unused                the source was never called; no effect if there is a state
-- KEYS[2...], ARGV[6]  the buckets and queues, see limiter_buckets
--
-- Returns one of
--   {n HIGH, n LOW, now, calls of the day, birth, runs...}: the slots granted, HIGH's
--     first. birth is the time at which the state began. A run is three numbers: count, wait
--     in us from now, interval in us.
--     If slots were rejected or only probes are granted, four numbers follow: for HIGH and
--     for LOW the us until the next call (0: all granted), and for each the reason:
--     the policy's number in the quota, or
--     -1 backoff or its probe  -2 stopped  -3 state lost  -4 day's count not restored
--     -5 circuit breaker open
--   {-1}: nothing was granted, because ARGV[4] is needed
--   for an empty quota: {now, birth, revision, stopped, end of backoff, ramp in
--     thousandths, count not restored}, and per policy of these kinds five numbers:
--     1, window, slots possible now in high, shared and low
--     2, reach, slots, LOW's slots, used
--     3, limit, reserve, used, end of the day
--     4 (breaker open), next probe, opened at, pause, longest pause
--
-- Atomic: one read and one write. State that is missing, malformed, or from before a restart, a
-- failover or a backward step of the clock begins with a quiet period, because permits of the
-- lost state can still be in use.
--
-- The state never expires. It consists of these lines:
--   1 format (2 characters), replication ID (40), name of the server's process (14), and the
--     numbers STATE
--   2 TAT (theoretical arrival time) of each partition
--   3 the numbers BREAKER
--   4 the quota in force
--   5 the strictest quota of all callers in this epoch; empty: the quota in force
--   6 the slots of the logs
-- Lines that a later format adds are kept. The newest revision is in force. If callers have
-- different quotas for one revision, the stricter values apply until no caller has sent them for
-- an epoch (2.5 s).
--
-- This file has the fast path, for the most frequent calls. A test checks that the full path returns
-- equal replies. The files of the full path, in this order:
--   limiter_load             reads the state and determines the quota in force
--   limiter_breaker          circuit breaker of the source or of a scope
--   limiter_partitions, _window_log, _day
--                            kinds of policies of the whole source
--   limiter_events           loss of state, events, and the reply that only reads
--   limiter_slots            grants slots of the source
--   limiter_buckets          what the kinds of buckets share
--   limiter_unit_log, _leaky_bucket, _min_interval, _reported, _concurrency, _scope_breaker
--                            kinds of policies with a scope
--   limiter_grant            grants slots to queues of a source with buckets
--   limiter_save             writes the state and returns the reply

local sub, format, find, ceil, floor, max, min, huge = string.sub, string.format, string.find, math.ceil, math.floor, math.max, math.min, math.huge
local MARGIN = 10000000 -- us; a call this close to midnight counts in both days
local AHEAD = 50000 -- us by which LOW can be ahead of its pace
local MAX_RETRY = 10000000 -- us until a rejected caller calls again at the latest: the pace can rise, a backoff can end, a call of the day can be refunded
local SAME = 5000 -- us; within this time after a write, the server that has written the state is the same

-- The numbers of the state: time until which the fast path is allowed; time of the last run; calls of
-- the day; LOW's last step; end of the day; births of the state and of the epoch; calls of the next
-- day; time at which the day's count began, 1 if it is not restored; next calls of HIGH and LOW; end
-- of the backoff, time of the last refusal, and the script's own pause.
-- `probed` is 0 without a backoff, and after a probe was answered and not refused. During a backoff
-- it is the slot of the newest probe, or the time of the last refusal if no probe was granted since
-- then.
local STATE = {'fastUntil', 'last', 'used', 'paced', 'dayEnd', 'birth', 'epoch', 'nextUsed', 'dayBorn', 'uncounted', 'backHigh', 'backLow',
  'backoffEnd', 'backoffSet', 'step', 'probed'}
-- The numbers of a circuit breaker: next probe (0: closed), time at which it opened, begin of the
-- current pause (or the time at which it closed), pause, longest pause.
local BREAKER = {'probe', 'opened', 'turned', 'pause', 'most'}

-- Reads named numbers, which are stored from the i-th character on. Each has 16 characters.
local function decode(text, names, i, count)
  local out = {}
  for n = 1, count or #names do
    out[names[n]], i = sub(text, i, i + 15) + 0, i + 16
  end
  return out
end

-- Reports whether a text has the given line at the i-th character.
local function hasLine(text, i, line)
  return find(text, line, i, true) == i and sub(text, i + #line, i + #line) == '\n'
end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local quota, midnights = ARGV[3], ARGV[4]
local readOnly = quota == ''
local stored = redis.call('GET', KEYS[1])

-- The replication ID distinguishes a server from its replicas and from itself before a restart.
-- INFO is slow, so the ID is not read if this server process has written the state less than
-- SAME us ago: a failover takes longer.
local process = sub(tostring(redis), -14)
local function replicationID(last)
  if stored and sub(stored, 43, 56) == process and now >= last and now < last + SAME then return sub(stored, 3, 42) end
  local info = redis.pcall('INFO', 'replication')
  local at = type(info) == 'string' and find(info, 'master_replid:', 1, true)
  return at and sub(info, at + 14, at + 53) or string.rep('0', 40)
end

-- Returns the limits of the day policy at the present time: calls of both lanes, calls of LOW, and
-- LOW's pace in us per call (0: none).
local function dayLimits(day, used, dayEnd)
  local seconds, left = max(1, (dayEnd + MARGIN - now) / 1000000), day.calls - used
  local low = left - day.reserve / 1000000 * seconds
  return left, low, low >= 1 and ceil(1000000 * seconds / low) or 0
end

-- The fast path decides calls of one lane whose slots are all possible now, from one partition. The
-- state allows it only for a quota of one window with the partitions high and shared, and perhaps a
-- day. Returns nil if the full path decides, or fails if the state is malformed.
local function fastPath()
  local s = decode(stored, STATE, 57, 6)
  if now >= s.fastUntil or now < s.last then return end
  local tats = 58 + 16 * #STATE
  local quotaAt = tats + 3 * 16 + 1 + #BREAKER * 16 + 1
  if not hasLine(stored, quotaAt, quota) then return end
  local policies = cjson.decode(quota).policies
  local nHigh, nLow, window, day = ARGV[1] + 0, ARGV[2] + 0, policies[1], policies[2]
  local n = nHigh + nLow
  local T, B, at
  if nLow == 0 and nHigh > 0 then
    T, B, at = window.highT, window.highB, tats
  elseif nHigh == 0 and nLow > 0 then
    T, B, at = window.sharedT, window.sharedB, tats + 16
  end
  if not T or T == 0 then return end
  local tat = max(sub(stored, at, at + 15) + 0, now) + n * T
  if tat - B * T > now then return end
  if day then
    local high, low, pace = dayLimits(day, s.used, s.dayEnd)
    if n > (nLow > 0 and low or high) then return end
    if nLow > 0 then
      s.paced = max(s.paced, now - pace) + n * pace
      if s.paced > now + AHEAD then return end
    end
    s.used = s.used + n
  end
  if replicationID(s.last) ~= sub(stored, 3, 42) then return end
  redis.call('SETRANGE', KEYS[1], 72, format('%16d%16d%16d', now, s.used, s.paced))
  redis.call('SETRANGE', KEYS[1], at - 1, format('%16d', tat))
  return {nHigh, nLow, now, s.used, s.birth, n, 0, 0}
end
if stored and not ARGV[5] then
  local ok, reply = pcall(fastPath)
  if ok and reply then return reply end
end
