-- limiter_acquire: reserves time slots for upstream calls of one source, for all
-- its policies together or not at all (design and proof: limiter/doc.go).
--
-- KEYS[1]  the source's state, quota:{source}:state
-- ARGV[1]  slots wanted by HIGH
-- ARGV[2]  slots wanted by LOW
-- ARGV[3]  the quota: revision, stopped (0 or 1), horizon and quiet start in us, and
--          for each policy a section; numbers have 16 places, padded with blanks. Sections:
--          L window, T and B of the lanes high, shared and low (T 0: no such lane)
--          R reach, slots in it, slots in it that LOW may use; 0: a ring of the other
--            lane's slots alone
--          D slots a day, millionths of a slot a second kept for HIGH
--          Empty: nothing is wanted or changed, see Returns
-- ARGV[4]  a name of 26 characters for the quota, such as the start of its SHA-1
-- ARGV[5]  three midnights around now, in us; may be empty, see Returns
-- ARGV[6]  LOW's interval in us before and from a moment, and that moment; empty or
--          not there: no rate cap
-- ARGV[7]  what has happened, words apart by blanks; or not there:
--          backoff D BASE SENT the upstream refused the call of slot SENT for D us
--                              (0: it did not say; BASE is then the first pause)
--          open FIRST MOST SENT   the call of slot SENT was answered as by a sick
--                          upstream: all calls stop, but for one that probes after
--                          FIRST us, and then after pauses that double up to MOST us
--          close SENT      that of slot SENT as by a healthy one: ends a probing stop
--                          that began before it; the rate comes back as after a brake
--          refund SLOT         a slot of which nothing was sent
--          used END N AT RATE MOST  the day until END had N calls at AT, and since
--                              then at most MOST and RATE a second
--          step NOW            Redis' clock was found to be set forward when it showed NOW
-- KEYS[2...], ARGV[8...]  the buckets that the calls are taken from too: limiter_buckets
--
-- Returns {n HIGH, n LOW, now, day's calls, runs...}: the slots granted, HIGH's first,
-- as runs of three numbers: how many, the first as a wait in us from now, and the
-- interval. If demand was refused four more numbers follow, for HIGH and LOW: in how
-- many us to ask again (0: nothing was refused), and the section that refused it (or:
-- -1 backoff, -2 stopped, -3 lost state, -4 the day is not counted until `used` is told,
-- -5 rate cap, -6 circuit breaker open). While a probing stop is in force they follow also when
-- nothing was refused, as with the slot of a probe: -6 then, for the lane that is
-- neither stopped nor uncounted. {-1}: the midnights are needed. For an empty quota instead
-- {now, birth, revision, stopped, backoff until, ramp in thousandths, uncounted,
-- then for each section: 1, L's window, slots that high, shared, low have at once;
-- 2, R's reach, slots, LOW's, used; 3, D's limit, reserve, used, end; and if a probing
-- stop is in force: 4, the moment of the next probe, since when, the pause, the longest}.
--
-- Atomic: one read and one write. A state that is missing, garbled, from before a
-- restart or a failover, or from before Redis' clock was set back starts quiet,
-- for permits of the lost state may still be on their way.
--
-- The state, without expiry: a line of numbers, the quota in force, the strictest
-- quota of the callers of this epoch, the slots of the rings, once there was one the
-- probing stop; lines of a later format that follow are kept. The newest revision is in force; where callers of
-- one revision differ, each gets what all of them allow, until the stricter have
-- been silent for an epoch.
--
-- This first half decides most calls, for a third of the time: where one quota of
-- lanes high and shared, and perhaps a day, is in force for all, and nothing is lost,
-- braked or told. It leaves the rest to limiter_load, which decides as it does (a test
-- holds them side by side) and says until when this half may. Of the line of numbers
-- it reads: format in 2 places, replication id 40, until when 16, name of the quota and
-- of the server's process 40,
-- then in 16 each: now, TAT of high and of shared, the day's calls, LOW's last step,
-- HIGH's
-- and LOW's return, the day's end.

local sub, format, ceil, floor, max, min = string.sub, string.format, math.ceil, math.floor, math.max, math.min
local MARGIN = 10000000 -- around midnight a call counts in both days for so long
local AHEAD = 50000     -- LOW may be so far ahead of its pace
local AGAIN = 10000000  -- who is refused asks again by then: a pace may rise, a brake be gone

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local quota, state = ARGV[3], redis.call('GETRANGE', KEYS[1], 0, 225)

-- What tells a server from what it was before a restart, and from its replica, is
-- its replication id. It need not be asked for what this very process has written a
-- moment ago: no server starts, and no caller finds another one, as fast as that.
local SAME = 5000
local process, anybody = sub(tostring(redis), -14), '--------------'
local calm, by = tonumber(sub(state, 43, 58)) or 0, sub(state, 85, 98)
local short = now < calm and not ARGV[6] and sub(state, 59, 84) == ARGV[4] and (by == process or by == anybody)
local ago = short and now - sub(state, 99, 114) or -1
local replid
if ago < 0 or ago >= SAME then
  local info = redis.pcall('INFO', 'replication')
  local at = type(info) == 'string' and string.find(info, 'master_replid:', 1, true)
  replid = at and sub(info, at + 14, at + 53) or '0000000000000000000000000000000000000000'
  short = ago >= 0 and sub(state, 3, 42) == replid
end

-- The short way, until the moment that the state names: one quota of lanes high
-- and shared, and perhaps a day, in force for all; nothing lost, braked or
-- happened. It decides as the long way below does, for a third of its time.
-- Garbled numbers make it fail until that moment, and then the state counts as lost.
if short then
  local nHigh, nLow, day = ARGV[1] + 0, ARGV[2] + 0, #quota > 162
  -- Most calls are for one lane, which has all at once. A number that such a call
  -- does not need stays as it was.
  if nLow == 0 and nHigh > 0 then
    local T, tat, used = sub(quota, 67, 82) + 0, sub(state, 115, 130) + 0, sub(state, 147, 162) + 0
    if tat < now then tat = now end
    tat = tat + nHigh * T
    if T > 0 and tat - sub(quota, 83, 98) * T <= now and (not day or sub(quota, 164, 179) - used >= nHigh) then
      if day then used = used + nHigh end
      redis.call('SETRANGE', KEYS[1], 98, format('%16d%16d%s%16d', now, tat, sub(state, 131, 146), used))
      return {nHigh, 0, now, used, nHigh, 0, 0}
    end
  elseif nHigh == 0 and nLow > 0 then
    local T, tat, used = sub(quota, 99, 114) + 0, sub(state, 131, 146) + 0, sub(state, 147, 162) + 0
    if tat < now then tat = now end
    tat = tat + nLow * T
    if tat - sub(quota, 115, 130) * T <= now then
      if not day then
        redis.call('SETRANGE', KEYS[1], 98, format('%16d%s%16d', now, sub(state, 115, 130), tat))
        return {0, nLow, now, used, nLow, 0, 0}
      end
      local seconds = (sub(state, 211, 226) + MARGIN - now) / 1000000
      local low, paced = sub(quota, 164, 179) - used - sub(quota, 180, 195) / 1000000 * seconds, sub(state, 163, 178) + 0
      local pace = ceil(1000000 * seconds / low)
      if paced < now - pace then paced = now - pace end
      paced = paced + nLow * pace
      if low >= nLow and paced <= now + AHEAD then
        used = used + nLow
        redis.call('SETRANGE', KEYS[1], 98, format('%16d%s%16d%16d%16d', now, sub(state, 115, 130), tat, used, paced))
        return {0, nLow, now, used, nLow, 0, 0}
      end
    end
  end
  do
    -- A number that this call does not need stays a text, and is written as it came.
    local horizon = sub(quota, 18, 33) + 0
    local t1, b1, t2, b2 = 0, 0, sub(quota, 99, 114) + 0, sub(quota, 115, 130) - 1
    local tat1, tat2 = sub(state, 115, 130), sub(state, 131, 146) + 0
    local used, paced, backHigh, backLow = sub(state, 147, 162) + 0, sub(state, 163, 178), sub(state, 179, 194), sub(state, 195, 210)
    local highMost, lowMost, pace, dayEnd, left = nHigh, nLow, 0, 0, nil
    if nHigh > 0 then t1, b1, tat1 = sub(quota, 67, 82) + 0, sub(quota, 83, 98) - 1, tat1 + 0 end
    if day then
      dayEnd = sub(state, 211, 226) + 0
      left = sub(quota, 164, 179) - used
      if nHigh > left then highMost = max(0, left) end
      if nLow > 0 then
        local seconds = (dayEnd + MARGIN - now) / 1000000
        local low = left - sub(quota, 180, 195) / 1000000 * seconds
        lowMost = min(nLow, floor(low))
        if low >= 1 then pace = ceil(1000000 * seconds / low) end
      end
    end
    local edge, runs, run = now + horizon, {}, 0
    local gotHigh, gotLow, returnHigh, returnLow, whyHigh, whyLow = 0, 0, 0, 0, 0, 0
    -- What the lanes have at once comes in one piece; then slot by slot.
    if highMost > 0 then
      if t1 > 0 then
        if tat1 < now then tat1 = now end
        local n = min(highMost, floor((now + b1 * t1 - tat1) / t1) + 1)
        if n > 0 then gotHigh, tat1 = n, tat1 + n * t1 end
      end
      if gotHigh < highMost then
        if tat2 < now then tat2 = now end
        local n = min(highMost - gotHigh, floor((now + b2 * t2 - tat2) / t2) + 1)
        if n > 0 then gotHigh, tat2 = gotHigh + n, tat2 + n * t2 end
      end
      if gotHigh > 0 then run, runs[1], runs[2], runs[3] = 1, gotHigh, 0, 0 end
      local before, open = now, gotHigh == 1 -- the last run has one slot yet
      while gotHigh < highMost do
        local slot, shared = tat2 - b2 * t2, true
        if t1 > 0 and tat1 - b1 * t1 <= slot then slot, shared = tat1 - b1 * t1, false end
        if slot > edge then
          local interval = t1 > 0 and t1 or t2
          local batch = max(1, min(nHigh - gotHigh, floor(horizon / 2 / interval)))
          local from = max(slot - horizon, backHigh + 0)
          if from > now + AGAIN then from, interval = now + AGAIN, 0 end
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
    if gotHigh == highMost and highMost < nHigh then returnHigh, whyHigh = max(1, min(1000000, dayEnd + MARGIN - now)), 2 end
    if left then lowMost = max(0, min(lowMost, left - gotHigh)) end
    if lowMost > 0 then
      local was = tat2
      if tat2 < now then tat2 = now end
      local n = min(lowMost, floor((now + b2 * t2 - tat2) / t2) + 1)
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
      while gotLow < lowMost do
        local slot, why = tat2 - b2 * t2, 1
        if pace > 0 and paced + pace - AHEAD > slot then slot, why = paced + pace - AHEAD, 2 end
        if slot > edge then
          local interval = max(pace, t2)
          local batch = max(1, min(nLow - gotLow, floor(horizon / 2 / interval)))
          local from = max(slot - horizon, backLow + 0)
          if from > now + AGAIN then from, interval = now + AGAIN, 0 end
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
      if gotLow == 0 then tat2 = was end -- its pace refused it
    end
    if gotLow == lowMost and lowMost < nLow then returnLow, whyLow = max(1, min(1000000, dayEnd + MARGIN - now)), 2 end
    if left then used = used + gotHigh + gotLow end
    redis.call('SETRANGE', KEYS[1], 98, format('%16d%16s%16d%16d%16s%s%s', now,
      nHigh > 0 and format('%16d', tat1) or tat1, tat2, used, pace > 0 and lowMost > 0 and format('%16d', paced) or paced, backHigh, backLow))
    if whyHigh ~= 0 or whyLow ~= 0 then
      run = #runs
      runs[run + 1], runs[run + 2], runs[run + 3], runs[run + 4] = returnHigh, returnLow, whyHigh, whyLow
    elseif #runs == 3 then
      return {gotHigh, gotLow, now, used, runs[1], runs[2], runs[3]}
    end
    return {gotHigh, gotLow, now, used, unpack(runs)}
  end
end
