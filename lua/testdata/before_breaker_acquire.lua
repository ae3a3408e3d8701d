-- limiter_acquire of a release without circuit breaker, first part (fast path). Tests run
-- it on a state that newer processes share. Its contract is that of limiter_acquire.lua
-- without the events open and close, the reason -5 and section 4.

local sub, format, ceil, floor, max, min = string.sub, string.format, math.ceil, math.floor, math.max, math.min
local MARGIN = 10000000
local AHEAD = 50000
local AGAIN = 10000000

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local quota, state = ARGV[3], redis.call('GETRANGE', KEYS[1], 0, 225)

local SAME = 5000
local name, anybody = ARGV[4] .. sub(tostring(redis), -14), '--------------'
local replid
local function readReplid()
  local info = redis.pcall('INFO', 'replication')
  local at = type(info) == 'string' and string.find(info, 'master_replid:', 1, true)
  replid = at and sub(info, at + 14, at + 53) or '0000000000000000000000000000000000000000'
  return replid
end

local calm = tonumber(sub(state, 43, 58)) or 0
if now < calm and not ARGV[6] and (sub(state, 59, 98) == name or sub(state, 59, 98) == ARGV[4] .. anybody) then
  local ago = now - sub(state, 99, 114)
  if ago >= 0 and (ago < SAME or sub(state, 3, 42) == readReplid()) then
    local nHigh, nLow, horizon = ARGV[1] + 0, ARGV[2] + 0, sub(quota, 18, 33) + 0
    local t1, b1, t2, b2 = 0, 0, sub(quota, 99, 114) + 0, sub(quota, 115, 130) - 1
    local tat1, tat2 = sub(state, 115, 130), sub(state, 131, 146) + 0
    local used, paced, backHigh, backLow = sub(state, 147, 162) + 0, sub(state, 163, 178), sub(state, 179, 194), sub(state, 195, 210)
    local highMost, lowMost, pace, dayEnd, left = nHigh, nLow, 0, 0, nil
    if nHigh > 0 then t1, b1, tat1 = sub(quota, 67, 82) + 0, sub(quota, 83, 98) - 1, tat1 + 0 end
    if #quota > 162 then
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
      local before, open = now, gotHigh == 1
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
