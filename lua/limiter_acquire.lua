-- limiter_acquire: reserves time slots for upstream calls of one source, for all
-- its policies together or not at all (design and proof: limiter/doc.go).
--
-- KEYS[1]  the source's state, quota:{source}:lanes
-- ARGV[1]  slots wanted by HIGH
-- ARGV[2]  slots wanted by LOW
-- ARGV[3]  the quota: revision, stopped (0 or 1), horizon and quiet start in us, and
--          for each policy a section; numbers have 16 places, padded with blanks. Sections:
--          L window, T and B of the lanes high, shared and low (T 0: no such lane)
--          R reach, slots in it, slots in it that LOW may use
--          D slots a day, millionths of a slot a second kept for HIGH
--          Empty: nothing is wanted or changed, see Returns
-- ARGV[4]  a name of 40 characters for the quota, such as its SHA-1
-- ARGV[5]  three midnights around now, in us; empty without a section D
-- ARGV[6]  LOW's interval in us before and from a moment, and that moment; empty or
--          not there: no ceiling
-- ARGV[7]  what has happened, words apart by blanks; or not there:
--          brake D BASE SENT   the upstream refused the call of slot SENT for D us
--                              (0: it did not say; BASE is then the first pause)
--          refund SLOT         a slot of which nothing was sent
--          used END N AT RATE  the day until END had N calls at AT, and since then
--                              at most RATE a second
--          step SEEN           Redis' clock was set forward after it showed SEEN
--
-- Returns {n HIGH, n LOW, return HIGH, return LOW, why HIGH, why LOW, now, day's
-- calls, runs...}: the slots granted; for demand that was refused in how many us to
-- ask again (0: nothing was refused) and the section that refused it (or: -1 brake,
-- -2 stopped, -3 lost state, -4 the day is not counted until `used` is told, -5
-- ceiling); and the slots, HIGH's first, as runs of three numbers: how many, the
-- first as a wait in us from now, and the interval. For an empty quota instead
-- {now, birth, revision, stopped, braked until, ramp in thousandths, uncounted,
-- then for each section: 1, L's window, slots that high, shared, low have at once;
-- 2, R's reach, slots, LOW's, used; 3, D's limit, reserve, used, end}.
--
-- Atomic: one read and one write. A state that is missing, garbled, from before a
-- restart or a failover, or from before Redis' clock was set back starts quiet,
-- for permits of the lost state may still be on their way.
--
-- The state, without expiry: a line of numbers, the quota in force, the strictest
-- quota of the callers of this epoch, the slots of the rings; lines of a later
-- format that follow are kept. The newest revision is in force; where callers of
-- one revision differ, each gets what all of them allow, until the stricter have
-- been silent for an epoch.
--
-- This first half decides most calls, for a third of the time: where one quota of
-- lanes high and shared, and perhaps a day, is in force for all, and nothing is lost,
-- braked or told. It leaves the rest to limiter_long, which decides as it does (a test
-- holds them side by side) and says until when this half may. Of the line of numbers
-- it reads: format in 2 places, replication id 40, until when 16, name of the quota 40,
-- then in 16 each: now, TAT of high and of shared, the day's calls, LOW's pace, HIGH's
-- and LOW's return, the day's end.

local sub, format, ceil, floor, max, min = string.sub, string.format, math.ceil, math.floor, math.max, math.min
local MARGIN = 10000000 -- around midnight a call counts in both days for so long
local AHEAD = 50000     -- LOW may be so far ahead of its pace

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
-- Changes when a replica is promoted and when the server restarts.
local ok, info = pcall(redis.call, 'INFO', 'replication')
local at = ok and type(info) == 'string' and string.find(info, 'master_replid:', 1, true)
local replid = at and sub(info, at + 14, at + 53) or '0000000000000000000000000000000000000000'
local quota, state = ARGV[3], redis.call('GETRANGE', KEYS[1], 0, 225)

-- The short way, until the moment that the state names: one quota of lanes high
-- and shared, and perhaps a day, in force for all; nothing lost, braked or
-- happened. It decides as the long way below does, for a third of its time.
local calm = tonumber(sub(state, 43, 58)) or 0
if now < calm and sub(state, 3, 42) == replid and sub(state, 59, 98) == ARGV[4] and (ARGV[6] or '') == '' and not ARGV[7] then
  local last, tat1, tat2 = tonumber(sub(state, 99, 114)), tonumber(sub(state, 115, 130)), tonumber(sub(state, 131, 146))
  local used, paced, dayEnd = 0, 0, 0
  local onDay = #quota > 162
  if onDay then used, paced, dayEnd = tonumber(sub(state, 147, 162)), tonumber(sub(state, 163, 178)), tonumber(sub(state, 211, 226)) end
  if last and tat1 and tat2 and used and paced and dayEnd and last <= now then
    local nHigh, nLow, horizon = ARGV[1] + 0, ARGV[2] + 0, sub(quota, 18, 33) + 0
    local t1, b1, t2, b2 = sub(quota, 67, 82) + 0, sub(quota, 83, 98) - 1, sub(quota, 99, 114) + 0, sub(quota, 115, 130) - 1
    local backHigh, backLow = sub(state, 179, 194), sub(state, 195, 210)
    local highMost, lowMost, pace = nHigh, nLow, 0
    if onDay then
      local seconds, left = (dayEnd + MARGIN - now) / 1000000, sub(quota, 164, 179) - used
      local low = left - sub(quota, 180, 195) / 1000000 * seconds
      highMost = max(0, min(nHigh, left))
      lowMost = max(0, min(nLow, floor(low), left - highMost))
      if low >= 1 then pace = 1000000 * seconds / low end
    end
    local edge, runs, run = now + horizon, {}, 0
    local gotHigh, gotLow, before = 0, 0, nil
    local returnHigh, returnLow, whyHigh, whyLow = 0, 0, 0, 0
    while gotHigh < highMost do
      local slot, shared = tat2 - b2 * t2, true
      if t1 > 0 and tat1 - b1 * t1 <= slot then slot, shared = tat1 - b1 * t1, false end
      if slot < now then slot = now end
      if slot > edge then
        local interval = t1 > 0 and t1 or t2
        local batch = max(1, min(nHigh - gotHigh, floor(horizon / 2 / interval)))
        local from = max(slot - horizon, tonumber(backHigh) or 0)
        returnHigh, whyHigh = max(1, from + (batch - 1) * interval - now), 1
        backHigh = format('%16d', from + batch * interval)
        break
      end
      if shared then tat2 = max(tat2, slot) + t2 else tat1 = max(tat1, slot) + t1 end
      gotHigh = gotHigh + 1
      if gotHigh == 1 then
        run, runs[1], runs[2], runs[3] = 1, 1, slot - now, 0
      elseif runs[run] == 1 then
        runs[run], runs[run + 2] = 2, slot - before
      elseif slot - before == runs[run + 2] then
        runs[run] = runs[run] + 1
      else
        run = run + 3
        runs[run], runs[run + 1], runs[run + 2] = 1, slot - now, 0
      end
      before = slot
    end
    if gotHigh == highMost and highMost < nHigh then returnHigh, whyHigh = max(1, min(1000000, dayEnd + MARGIN - now)), 2 end
    run = #runs + 1
    while gotLow < lowMost do
      local slot, why = tat2 - b2 * t2, 1
      if slot < now then slot = now end
      if pace > 0 and paced - AHEAD > slot then slot, why = paced - AHEAD, 2 end
      if slot > edge then
        local interval = max(pace, t2)
        local batch = max(1, min(nLow - gotLow, floor(horizon / 2 / interval)))
        local from = max(slot - horizon, tonumber(backLow) or 0)
        returnLow, whyLow = max(1, ceil(from + (batch - 1) * interval) - now), why
        backLow = format('%16d', ceil(from + batch * interval))
        break
      end
      tat2 = max(tat2, slot) + t2
      if pace > 0 then paced = ceil(max(paced, slot) + pace) end
      gotLow = gotLow + 1
      if gotLow == 1 then
        runs[run], runs[run + 1], runs[run + 2] = 1, slot - now, 0
      elseif runs[run] == 1 then
        runs[run], runs[run + 2] = 2, slot - before
      elseif slot - before == runs[run + 2] then
        runs[run] = runs[run] + 1
      else
        run = run + 3
        runs[run], runs[run + 1], runs[run + 2] = 1, slot - now, 0
      end
      before = slot
    end
    if gotLow == lowMost and lowMost < nLow then returnLow, whyLow = max(1, min(1000000, dayEnd + MARGIN - now)), 2 end
    redis.call('SETRANGE', KEYS[1], 98, format('%16d%16d%16d%16d%16d%s%s', now, tat1, tat2, used + gotHigh + gotLow, paced, backHigh, backLow))
    return {gotHigh, gotLow, returnHigh, returnLow, whyHigh, whyLow, now, used + gotHigh + gotLow, unpack(runs)}
  end
end
