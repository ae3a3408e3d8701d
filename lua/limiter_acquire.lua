-- limiter_acquire: reserves time slots for upstream calls of one source. Each slot is taken from
-- all policies or from none of them (design, terms and proof: limiter/doc.go).
--
-- KEYS[1]  the source's state, quota:{source}:state
-- ARGV[1]  slots requested for HIGH
-- ARGV[2]  slots requested for LOW
-- ARGV[3]  the quota; empty: only read the state. Numbers have 16 characters, padded
--          with blanks: revision, stopped (1 character, 0 or 1), horizon and quiet
--          period in us, and then one section per policy:
--          L window, then interval T in us and burst B of each of the partitions high,
--            shared and low (T 0: no partition)
--          R reach in us, then the maximum number of slots in it after a call of HIGH, and
--            after a call of LOW (0: this log does not count the lane)
--          D slots per day, millionths of a slot per second that are kept for HIGH
--          others: see limiter_buckets
-- ARGV[4]  name of the quota with 26 characters, such as a prefix of its SHA-1
-- ARGV[5]  three midnights around now in us; if empty, the reply can be {-1}
-- ARGV[6]  events, separated by blanks; can be missing:
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
-- KEYS[2...], ARGV[7...]  the buckets and queues, see limiter_buckets
--
-- Returns one of
--   {n HIGH, n LOW, now, calls of the day, birth, runs...}: the slots granted, HIGH's
--     first. birth is the time at which the state began. A run is three numbers: count, wait
--     in us from now, interval in us.
--     If slots were rejected or only probes are granted, four numbers follow: for HIGH and
--     for LOW the us until the next call (0: all granted), and for each the reason:
--     the section's number, or
--     -1 backoff or its probe  -2 stopped  -3 state lost  -4 day's count not restored
--     -5 circuit breaker open
--   {-1}: nothing was granted, because ARGV[5] is needed
--   for an empty quota: {now, birth, revision, stopped, end of backoff, ramp in
--     thousandths, count not restored}, and per section five numbers:
--     1, window, slots possible now in high, shared and low
--     2, reach, slots, LOW's slots, used
--     3, limit, reserve, used, end of the day
--     4 (breaker open), next probe, opened at, pause, longest pause
--
-- Atomic: one read and one write. State that is missing, malformed, or from before a restart, a
-- failover or a backward step of the clock begins with a quiet period, because permits of the
-- lost state can still be in use.
--
-- The state never expires. It consists of these lines: the numbers, the quota in force, the
-- strictest quota of all callers in this epoch, the slots of the logs, and the breaker if it
-- ever opened. Lines that a later format adds are kept. The newest revision is in force. If
-- callers have different quotas for one revision, the stricter values apply until no caller has
-- sent them for an epoch (2.5 s).
--
-- This file is the fast path. It decides most calls in a third of the time: one quota with the
-- partitions high and shared and perhaps a day, no loss, no backoff, no events. In all other
-- cases limiter_load continues with the full path. A test checks that both paths return equal
-- replies.
--
-- The state's line of numbers begins with: format (2 characters), replication ID (40), time until
-- which the fast path is allowed (16), name of the quota and of the server's process (40), and
-- then 16 characters each: now, TAT (theoretical arrival time) of high and shared, calls of the
-- day, LOW's last step, next calls of HIGH and LOW, end of the day, birth.

local sub, format, ceil, floor, max, min = string.sub, string.format, math.ceil, math.floor, math.max, math.min
local MARGIN = 10000000 -- us; a call this close to midnight counts in both days
local AHEAD = 50000 -- us by which LOW can be ahead of its pace
local MAX_RETRY = 10000000 -- us until a rejected caller calls again at the latest: the pace can rise, a backoff can end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local quota, state = ARGV[3], redis.call('GETRANGE', KEYS[1], 0, 241)

-- The replication ID distinguishes a server from its replicas and from itself before a restart.
-- INFO is slow, so the ID is not read if this server process has written the state less than
-- SAME us ago: a failover takes longer.
local SAME = 5000
local process, anyProcess = sub(tostring(redis), -14), '--------------'
local fastUntil, by = tonumber(sub(state, 43, 58)) or 0, sub(state, 85, 98)
local fast = now < fastUntil and not ARGV[6] and sub(state, 59, 84) == ARGV[4] and (by == process or by == anyProcess)
local ago = fast and now - sub(state, 99, 114) or -1
local replid
if ago < 0 or ago >= SAME then
  local info = redis.pcall('INFO', 'replication')
  local at = type(info) == 'string' and string.find(info, 'master_replid:', 1, true)
  replid = at and sub(info, at + 14, at + 53) or '0000000000000000000000000000000000000000'
  fast = ago >= 0 and sub(state, 3, 42) == replid
end

-- The fast path is a shorter computation for the most frequent calls. If the state has malformed
-- numbers, the fast path fails with an error until the time `fastUntil`. After that time the full
-- path runs, and the state counts as lost.
if fast then
  local nHigh, nLow, day, birth = ARGV[1] + 0, ARGV[2] + 0, #quota > 162, sub(state, 227, 242) + 0
  -- Most calls are for one lane, and all their slots are possible now. Such calls are decided here.
  -- Numbers that they do not need are copied as text.
  if nLow == 0 and nHigh > 0 then
    local T, tat, used = sub(quota, 67, 82) + 0, sub(state, 115, 130) + 0, sub(state, 147, 162) + 0
    if tat < now then tat = now end
    tat = tat + nHigh * T
    if T > 0 and tat - sub(quota, 83, 98) * T <= now and (not day or sub(quota, 164, 179) - used >= nHigh) then
      if day then used = used + nHigh end
      redis.call('SETRANGE', KEYS[1], 98, format('%16d%16d%s%16d', now, tat, sub(state, 131, 146), used))
      return {nHigh, 0, now, used, birth, nHigh, 0, 0}
    end
  elseif nHigh == 0 and nLow > 0 then
    local T, tat, used = sub(quota, 99, 114) + 0, sub(state, 131, 146) + 0, sub(state, 147, 162) + 0
    if tat < now then tat = now end
    tat = tat + nLow * T
    if tat - sub(quota, 115, 130) * T <= now then
      if not day then
        redis.call('SETRANGE', KEYS[1], 98, format('%16d%s%16d', now, sub(state, 115, 130), tat))
        return {0, nLow, now, used, birth, nLow, 0, 0}
      end
      local seconds = (sub(state, 211, 226) + MARGIN - now) / 1000000
      local low, paced = sub(quota, 164, 179) - used - sub(quota, 180, 195) / 1000000 * seconds, sub(state, 163, 178) + 0
      local pace = ceil(1000000 * seconds / low)
      if paced < now - pace then paced = now - pace end
      paced = paced + nLow * pace
      if low >= nLow and paced <= now + AHEAD then
        used = used + nLow
        redis.call('SETRANGE', KEYS[1], 98, format('%16d%s%16d%16d%16d', now, sub(state, 115, 130), tat, used, paced))
        return {0, nLow, now, used, birth, nLow, 0, 0}
      end
    end
  end
  do
    -- Numbers that this call does not need stay text and are copied.
    local horizon = sub(quota, 18, 33) + 0
    local t1, b1, t2, b2 = 0, 0, sub(quota, 99, 114) + 0, sub(quota, 115, 130) - 1
    local tat1, tat2 = sub(state, 115, 130), sub(state, 131, 146) + 0
    local used, paced, backHigh, backLow = sub(state, 147, 162) + 0, sub(state, 163, 178), sub(state, 179, 194), sub(state, 195, 210)
    local maxHigh, maxLow, pace, dayEnd, left = nHigh, nLow, 0, 0, nil
    if nHigh > 0 then t1, b1, tat1 = sub(quota, 67, 82) + 0, sub(quota, 83, 98) - 1, tat1 + 0 end
    if day then
      dayEnd = sub(state, 211, 226) + 0
      left = sub(quota, 164, 179) - used
      if nHigh > left then maxHigh = max(0, left) end
      if nLow > 0 then
        local seconds = (dayEnd + MARGIN - now) / 1000000
        local low = left - sub(quota, 180, 195) / 1000000 * seconds
        maxLow = min(nLow, floor(low))
        if low >= 1 then pace = ceil(1000000 * seconds / low) end
      end
    end
    local edge, runs, run = now + horizon, {}, 0
    local gotHigh, gotLow, returnHigh, returnLow, whyHigh, whyLow = 0, 0, 0, 0, 0, 0
    -- The slots that are possible now form one run. Later slots are computed one by one.
    if maxHigh > 0 then
      if t1 > 0 then
        if tat1 < now then tat1 = now end
        local n = min(maxHigh, floor((now + b1 * t1 - tat1) / t1) + 1)
        if n > 0 then gotHigh, tat1 = n, tat1 + n * t1 end
      end
      if gotHigh < maxHigh then
        if tat2 < now then tat2 = now end
        local n = min(maxHigh - gotHigh, floor((now + b2 * t2 - tat2) / t2) + 1)
        if n > 0 then gotHigh, tat2 = gotHigh + n, tat2 + n * t2 end
      end
      if gotHigh > 0 then run, runs[1], runs[2], runs[3] = 1, gotHigh, 0, 0 end
      local before, open = now, gotHigh == 1 -- open: the last run has one slot, so its interval is not known yet
      while gotHigh < maxHigh do
        local slot, shared = tat2 - b2 * t2, true
        if t1 > 0 and tat1 - b1 * t1 <= slot then slot, shared = tat1 - b1 * t1, false end
        if slot > edge then
          local interval = t1 > 0 and t1 or t2
          local batch = max(1, min(nHigh - gotHigh, floor(horizon / 2 / interval)))
          local from = max(slot - horizon, backHigh + 0)
          if from > now + MAX_RETRY then from, interval = now + MAX_RETRY, 0 end
          returnHigh, whyHigh = max(1, from + (batch - 1) * interval - now), 1
          backHigh = format('%16d', from + batch * interval)
          break
        end
        if shared then tat2 = tat2 + t2 else tat1 = tat1 + t1 end
        gotHigh = gotHigh + 1
        if open then
          runs[run], runs[run + 2], open = 2, slot - before, false
        elseif run > 0 and slot - before == runs[run + 2] then
          runs[run] = runs[run] + 1
        else
          run, open = #runs + 1, true
          runs[run], runs[run + 1], runs[run + 2] = 1, slot - now, 0
        end
        before = slot
      end
    end
    if gotHigh == maxHigh and maxHigh < nHigh then returnHigh, whyHigh = max(1, min(1000000, dayEnd + MARGIN - now)), 2 end
    if left then maxLow = max(0, min(maxLow, left - gotHigh)) end
    if maxLow > 0 then
      local was = tat2
      if tat2 < now then tat2 = now end
      local n = min(maxLow, floor((now + b2 * t2 - tat2) / t2) + 1)
      if pace > 0 then
        local base = max(paced + 0, now - pace)
        n = min(n, floor((now + AHEAD - base) / pace))
        paced = n > 0 and base + n * pace or paced + 0
      end
      run = #runs + 1
      if n > 0 then
        gotLow, tat2 = n, tat2 + n * t2
        runs[run], runs[run + 1], runs[run + 2] = n, 0, 0
      end
      local before, open, mine = now, n == 1, n > 0
      while gotLow < maxLow do
        local slot, why = tat2 - b2 * t2, 1
        if pace > 0 and paced + pace - AHEAD > slot then slot, why = paced + pace - AHEAD, 2 end
        if slot > edge then
          local interval = max(pace, t2)
          local batch = max(1, min(nLow - gotLow, floor(horizon / 2 / interval)))
          local from = max(slot - horizon, backLow + 0)
          if from > now + MAX_RETRY then from, interval = now + MAX_RETRY, 0 end
          returnLow, whyLow = max(1, ceil(from + (batch - 1) * interval) - now), why
          backLow = format('%16d', ceil(from + batch * interval))
          break
        end
        tat2, gotLow = max(tat2, slot) + t2, gotLow + 1
        if pace > 0 then paced = max(paced + pace, slot) end
        if open then
          runs[run], runs[run + 2], open = 2, slot - before, false
        elseif mine and slot - before == runs[run + 2] then
          runs[run] = runs[run] + 1
        else
          run, open, mine = #runs + 1, true, true
          runs[run], runs[run + 1], runs[run + 2] = 1, slot - now, 0
        end
        before = slot
      end
      if gotLow == 0 then tat2 = was end -- the pace rejected all slots, so the partition does not change
    end
    if gotLow == maxLow and maxLow < nLow then returnLow, whyLow = max(1, min(1000000, dayEnd + MARGIN - now)), 2 end
    if left then used = used + gotHigh + gotLow end
    redis.call('SETRANGE', KEYS[1], 98, format('%16d%16s%16d%16d%16s%s%s', now,
      nHigh > 0 and format('%16d', tat1) or tat1, tat2, used, pace > 0 and maxLow > 0 and format('%16d', paced) or paced, backHigh, backLow))
    if whyHigh ~= 0 or whyLow ~= 0 then
      run = #runs
      runs[run + 1], runs[run + 2], runs[run + 3], runs[run + 4] = returnHigh, returnLow, whyHigh, whyLow
    elseif #runs == 3 then
      return {gotHigh, gotLow, now, used, birth, runs[1], runs[2], runs[3]}
    end
    return {gotHigh, gotLow, now, used, birth, unpack(runs)}
  end
end
