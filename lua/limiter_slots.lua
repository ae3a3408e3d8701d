-- limiter_slots: continues limiter_load, with its locals. It has the functions that grant slots
-- from the loaded state.

-- The limits of the day policy at the present time: calls of both lanes, calls of LOW, LOW's pace in
-- us per call, and the number of the section that sets the pace.
local maxHigh, maxLow, pace, paceWhy = huge, huge, 0, 0
local inMargin = day and now + horizon >= dayEnd - MARGIN
if day then
  local seconds, reserve = max(1, (dayEnd + MARGIN - now) / 1000000), day[2] / 1000000
  maxHigh = day[1] - used
  maxLow = maxHigh - reserve * seconds
  if maxLow >= 1 then pace, paceWhy = ceil(1000000 * seconds / maxLow), day.day end
  if inMargin then
    maxHigh = min(maxHigh, day[1] - nextUsed)
    local left = day[1] - nextUsed - reserve * 86400
    maxLow = min(maxLow, left)
    if left >= 1 then pace = max(pace, ceil(86400000000 / left)) end
  end
end

-- Returns the earliest slot for a lane, and the number of the section that determines this slot.
-- The parameters are the numbers of the lane's partitions: 1 (high) and 2 (shared) for HIGH, 2
-- and 3 (low) for LOW. Stores in `taken` which partition of each L section has the slot.
local taken = {}
local function slotOf(first, second)
  local slot, why = earliest, backoffEnd > now and -1 or 0
  for l = 0, #T - 3, 3 do
    local a, b = huge, huge
    local ta, tb = T[l + first], T[l + second]
    if ta > 0 then a = tats[l + first] - (B[l + first] - 1) * ta end
    if tb > 0 then b = tats[l + second] - (B[l + second] - 1) * tb end
    local n = second
    if max(a, earliest) <= max(b, earliest) then b, n = a, first end -- both partitions have a slot now: use the first partition
    taken[l] = n
    if b > slot then slot, why = b, index[l / 3 + 1] end
  end
  for n = 1, #reach do
    local log, share = logs[n], first == 1 and slots[n] or lowSlots[n]
    local most = share > 0 and max(1, floor(share * ramp)) or huge -- huge: this log does not count this lane
    local s = share > 0 and #log >= 16 and number(log, #log - 15) or 0
    if #log >= 16 * most then s = max(s, number(log, #log - 16 * most + 1) + reach[n]) end
    if s > slot then slot, why = s, logIndex[n] end
  end
  if first == 2 and pace > 0 and ceil(paced + pace) - AHEAD > slot then slot, why = ceil(paced + pace) - AHEAD, paceWhy end
  return slot, why
end

-- Takes a slot from all policies. The function slotOf has returned this slot.
local function take(slot, first)
  for l = 0, #T - 3, 3 do
    local lane = l + taken[l]
    tats[lane] = ceil(max(tats[lane], slot) + T[lane] / ramp)
  end
  for r = 1, #reach do
    if (first == 1 and slots[r] or lowSlots[r]) > 0 then
      logs[r] = sub(logs[r] .. format('%16d', slot), -16 * max(slots[r], lowSlots[r]))
    end
  end
  if first == 2 and pace > 0 then paced = max(ceil(paced + pace), slot) end
  if day then
    if slot >= dayEnd - MARGIN then nextUsed = nextUsed + 1 end
    used = used + 1
  end
  if probed > 0 then -- this slot is a backoff's probe; the pause doubles now, in case the probe is never answered
    step = min(max(2 * step, MIN_PROBE_PAUSE), MAX_BACKOFF)
    probed = slot
    earliest = max(earliest, slot + step)
  end
  if nextProbe > 0 then -- this slot is the breaker's probe; the next probe is beyond the horizon
    pauseStart, pause = slot, min(maxPause, 2 * pause)
    nextProbe = slot + pause
    earliest = max(earliest, nextProbe)
  end
end

-- us until a rejected caller calls again while the breaker is open, because the breaker can close, or
-- while the probe of a backoff is in flight, because the backoff can end.
local OPEN_RETRY = 500000

-- Returns the reason why only probes are granted; 0: other calls are granted too.
local function halfOpen() return nextProbe > 0 and -5 or probed > 0 and -1 or 0 end

-- Reports whether the response to a call can close the breaker, or end the backoff, before the next
-- probe.
local function canResume() return backoffEnd <= now and (nextProbe > 0 or leaseEnd() > 0) end

local runs, run = {}, nil
local function grant(n, most, first, second, before, interval)
  if n == 0 then return 0, 0, halfOpen(), before end
  if stopped then return 0, 1000000, -2, before end
  if uncounted == 1 then return 0, 50000, -4, before end
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
    return granted, max(1, min(1000000, dayEnd + MARGIN - now)), halfOpen() < 0 and halfOpen() or day.day, before
  end
  if why == 0 or now < birth + quiet or lost then why = -3 end
  -- While only probes are granted, every reply has the reason for that. Callers call again soon if
  -- the state can change before the next probe.
  local again = MAX_RETRY
  if halfOpen() < 0 then
    slot, why = max(slot, earliest), halfOpen()
    if canResume() then again = OPEN_RETRY end
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
  for l = 0, #T - 3, 3 do
    most = max(most, T[l + first] > 0 and T[l + first] or T[l + second])
  end
  for r = 1, #reach do
    local share = first == 1 and slots[r] or lowSlots[r]
    if share > 0 then most = max(most, reach[r] / share) end
  end
  return most / ramp
end

