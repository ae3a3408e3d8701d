-- limiter_slots: goes on where limiter_load ends, whose locals are ours: how slots are
-- given out by the state as it is now.

-- What the day and the rate cap leave to whom.
local highMost, lowMost, pace, paceWhy = huge, huge, 0, 0
local inMargin = day and now + horizon >= dayEnd - MARGIN
if day then
  local seconds, reserve = max(1, (dayEnd + MARGIN - now) / 1000000), day[2] / 1000000
  highMost = day[1] - used
  lowMost = highMost - reserve * seconds
  if lowMost >= 1 then pace, paceWhy = ceil(1000000 * seconds / lowMost), day.day end
  if inMargin then
    highMost = min(highMost, day[1] - nextUsed)
    local left = day[1] - nextUsed - reserve * 86400
    lowMost = min(lowMost, left)
    if left >= 1 then pace = max(pace, ceil(86400000000 / left)) end
  end
end
if (ARGV[6] or '') ~= '' then
  local rateCap = number(ARGV[6], now < number(ARGV[6], 33) and 1 or 17)
  if rateCap > pace then pace, paceWhy = rateCap, -5 end
end

-- The earliest slot for HIGH (first, second = 1, 2) or LOW (2, 3), the section
-- that decides it, and the lane of each L section that it takes.
local taken = {}
local function slotOf(first, second)
  local slot, why = earliest, brake > now and -1 or 0
  for l = 0, #T - 3, 3 do
    local a, b = huge, huge
    local ta, tb = T[l + first], T[l + second]
    if ta > 0 then a = tats[l + first] - (B[l + first] - 1) * ta end
    if tb > 0 then b = tats[l + second] - (B[l + second] - 1) * tb end
    local n = second
    if max(a, earliest) <= max(b, earliest) then b, n = a, first end -- at once in both: one's own
    taken[l] = n
    if b > slot then slot, why = b, index[l / 3 + 1] end
  end
  for n = 1, #reach do
    local ring, share = rings[n], first == 1 and slots[n] or lowSlots[n]
    local most = share > 0 and max(1, floor(share * ramp)) or huge -- not charged to this lane
    local s = share > 0 and #ring >= 16 and number(ring, #ring - 15) or 0
    if #ring >= 16 * most then s = max(s, number(ring, #ring - 16 * most + 1) + reach[n]) end
    if s > slot then slot, why = s, ringIndex[n] end
  end
  if first == 2 and pace > 0 and ceil(paced + pace) - AHEAD > slot then slot, why = ceil(paced + pace) - AHEAD, paceWhy end
  return slot, why
end

-- Takes that slot of all that slotOf has looked at.
local function take(slot, first)
  for l = 0, #T - 3, 3 do
    local lane = l + taken[l]
    tats[lane] = ceil(max(tats[lane], slot) + T[lane] / ramp)
  end
  for r = 1, #reach do
    if (first == 1 and slots[r] or lowSlots[r]) > 0 then
      rings[r] = sub(rings[r] .. format('%16d', slot), -16 * max(slots[r], lowSlots[r]))
    end
  end
  if first == 2 and pace > 0 then paced = max(ceil(paced + pace), slot) end
  if day then
    if slot >= dayEnd - MARGIN then nextUsed = nextUsed + 1 end
    used = used + 1
  end
  if probe > 0 then -- that was it; the next is beyond the horizon
    turned, pause = slot, min(pauseMost, 2 * pause)
    probe = slot + pause
    earliest = max(earliest, probe)
  end
end

local LIFTED = 500000 -- who is refused by a probing stop asks again by then: it may be lifted
local runs, run = {}, nil
local function grant(n, most, first, second, before, interval)
  if n == 0 then return 0, 0, probe > 0 and -6 or 0, before end
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
  if granted == n and probe == 0 then return granted, 0, 0, before end
  if granted == limit and granted < n then -- the day has no more
    return granted, max(1, min(1000000, dayEnd + MARGIN - now)), probe > 0 and -6 or day.day, before
  end
  if why == 0 or now < birth + quiet or lost then why = -3 end
  -- Whoever probes, and whoever may not, learns of it; and soon of its end, which may
  -- come before the next probe, and which a brake would outlast.
  local again = AGAIN
  if probe > 0 then
    slot, why = max(slot, earliest), -6
    if brake <= now then again = LIFTED end
  end
  -- Back when a batch of slots has come within the horizon, but while at least
  -- half of the reserved ones are still ahead: few calls, and no idle lane.
  local batch = max(1, min(n - granted, floor(horizon / 2 / interval)))
  local from = max(slot - horizon, before)
  if from > now + again then from, interval = now + again, 0 end
  return granted, max(1, ceil(from + (batch - 1) * interval) - now), why, ceil(from + batch * interval)
end

-- How far apart the slots of who waits are, on the average.
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

