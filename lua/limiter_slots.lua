-- limiter_slots: continues limiter_load, with its locals. It has the functions that grant slots
-- from the loaded state.

-- The limits of the day policy at the present time: calls of both lanes, calls of LOW, LOW's pace in
-- us per call, and the number of the policy that sets the pace.
local maxHigh, maxLow, pace, paceWhy = huge, huge, 0, 0
if day then
  maxHigh, maxLow, pace = dayLimits(day, state.used, state.dayEnd)
  if pace > 0 then paceWhy = numberOf[day] end
  if now + horizon >= state.dayEnd - MARGIN then
    maxHigh = min(maxHigh, day.calls - state.nextUsed)
    local left = day.calls - state.nextUsed - day.reserve / 1000000 * 86400
    maxLow = min(maxLow, left)
    if left >= 1 then pace = max(pace, ceil(86400000000 / left)) end
  end
end

-- The step of the GCRA: returns the TAT after a call that takes `us` of the full rate.
local function nextTat(tat, slot, us) return max(tat, slot) + ceil(us / ramp) end

-- Returns the earliest slot of a partition (huge: there is no such partition).
local function partitionSlot(p) return p.T > 0 and p.tat - (p.B - 1) * p.T or huge end

-- Returns the earliest slot for a lane, and the number of the policy that determines this slot.
-- The parameters are the numbers of the lane's partitions: 1 (high) and 2 (shared) for HIGH, 2
-- and 3 (low) for LOW. Stores in `taken` of each window the number of the partition that has the slot.
local function slotOf(first, second)
  local slot, why = earliest, state.backoffEnd > now and -1 or 0
  for _, w in ipairs(windows) do
    local a, b = partitionSlot(w[first]), partitionSlot(w[second])
    w.taken = second
    if max(a, earliest) <= max(b, earliest) then b, w.taken = a, first end -- both partitions have a slot now: use the first partition
    if b > slot then slot, why = b, numberOf[w] end
  end
  for _, s in ipairs(logs) do
    local log, share = s.log, first == 1 and s.slots or s.lowSlots
    if share > 0 then -- otherwise this log does not count this lane
      local most, at = max(1, floor(share * ramp)), #log >= 16 and number(log, #log - 15) or 0
      if #log >= 16 * most then at = max(at, number(log, #log - 16 * most + 1) + s.reach) end
      if at > slot then slot, why = at, numberOf[s] end
    end
  end
  if first == 2 and pace > 0 and ceil(state.paced + pace) - AHEAD > slot then slot, why = ceil(state.paced + pace) - AHEAD, paceWhy end
  return slot, why
end

-- Takes a slot from all policies. The function slotOf has returned this slot.
local function take(slot, first)
  for _, w in ipairs(windows) do
    local p = w[w.taken]
    p.tat = nextTat(p.tat, slot, p.T)
  end
  for _, s in ipairs(logs) do
    if (first == 1 and s.slots or s.lowSlots) > 0 then
      s.log = sub(s.log .. format('%16d', slot), -16 * max(s.slots, s.lowSlots))
    end
  end
  if first == 2 and pace > 0 then state.paced = max(ceil(state.paced + pace), slot) end
  if day then
    if slot >= state.dayEnd - MARGIN then state.nextUsed = state.nextUsed + 1 end
    state.used = state.used + 1
  end
  if state.probed > 0 then -- this slot is a backoff's probe; the pause doubles now, in case the probe is never answered
    state.step = min(max(2 * state.step, MIN_PROBE_PAUSE), MAX_BACKOFF)
    state.probed = slot
    earliest = max(earliest, slot + state.step)
  end
  if breaker.probe > 0 then -- this slot is the breaker's probe; the next probe is beyond the horizon
    takeProbe(breaker, slot)
    earliest = max(earliest, breaker.probe)
  end
end

-- Returns the us until a rejected caller calls again while a breaker is open, because the breaker can
-- close, or while the probe of a backoff is in flight, because the backoff can end. The time grows with
-- the age of the newest probe, because an answer becomes less likely.
local function openRetry(probed) return max(500000, floor((now - probed) / 4)) end

-- Returns the us until a rejected caller calls again because the day has no call for its lane. The
-- calls kept for HIGH become fewer during the day, so LOW can call again before the day's end.
local function dayRetry(low)
  local wait, left = state.dayEnd + MARGIN - now, day.calls - state.used
  local forLow = low and left >= 1 and wait - (left - 1) / day.reserve * 1e12 or 0
  if forLow > 0 then wait = forLow + 1000 end
  return max(1, min(MAX_RETRY, ceil(wait)))
end

-- Returns the reason why only probes are granted; 0: other calls are granted too.
local function halfOpen() return breaker.probe > 0 and -5 or state.probed > 0 and -1 or 0 end

-- Returns openRetry for the breaker or the backoff of the source; MAX_RETRY if no response to a call
-- can close the breaker, or end the backoff, before the next probe.
local function resumeRetry()
  if state.backoffEnd > now or (breaker.probe == 0 and leaseEnd() == 0) then return MAX_RETRY end
  return min(MAX_RETRY, openRetry(max(breaker.turned, state.probed)))
end

local runs, run = {}, nil
local function grant(n, most, first, second, before, interval)
  if n == 0 then return 0, 0, halfOpen(), before end
  if stopped then return 0, 1000000, -2, before end
  if state.uncounted == 1 then return 0, 50000, -4, before end
  local granted, slot, why = 0, 0, 0
  local limit = min(n, max(0, floor(most)))
  run = nil
  while granted < limit do
    slot, why = slotOf(first, second)
    if slot > now + horizon then break end
    take(slot, first)
    granted = granted + 1
    local wait = slot - now
    if run and runs[run] == 1 then
      runs[run], runs[run + 2] = 2, wait - runs[run + 1]
    elseif run and wait - runs[run + 1] == runs[run] * runs[run + 2] then
      runs[run] = runs[run] + 1
    else
      run = #runs + 1
      runs[run], runs[run + 1], runs[run + 2] = 1, wait, 0
    end
  end
  if granted == n and halfOpen() == 0 then return granted, 0, 0, before end
  if granted == limit and granted < n then -- the day has no more calls for this lane
    return granted, dayRetry(first == 2), halfOpen() < 0 and halfOpen() or numberOf[day], before
  end
  if why == 0 or now < birth + quiet or lost then why = -3 end
  -- While only probes are granted, every reply has the reason for that. Callers call again soon if
  -- the state can change before the next probe.
  local again = MAX_RETRY
  if halfOpen() < 0 then
    slot, why = max(slot, earliest), halfOpen()
    again = resumeRetry()
  end
  -- The caller calls again when a batch of slots is within the horizon. A batch takes at most half
  -- a horizon, so that no slot passes unused. A batch of several slots needs only one call.
  local batch = max(1, min(n - granted, floor(horizon / 2 / interval)))
  local from = max(slot - horizon, before)
  if from > now + again then from, interval = now + again, 0 end
  return granted, max(1, ceil(from + (batch - 1) * interval) - now), why, ceil(from + batch * interval)
end

-- Returns the average time in us between the slots of a lane.
local function interval(first, second)
  local most = 1
  for _, w in ipairs(windows) do most = max(most, w[first].T > 0 and w[first].T or w[second].T) end
  for _, s in ipairs(logs) do
    local share = first == 1 and s.slots or s.lowSlots
    if share > 0 then most = max(most, s.reach / share) end
  end
  return most / ramp
end

