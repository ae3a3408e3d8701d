-- limiter_slots: continues limiter_events. It grants slots from the policies of the whole source.

-- Returns the earliest slot for a lane, and the number of the policy that determines this slot.
local function slotOf(lane)
  local slot, why = earliest, state.backoffEnd > now and -1 or 0
  for n = 1, #inUse do slot, why = inUse[n].wait(slot, why, lane) end
  return slot, why
end

-- Takes a slot from all policies. The function slotOf has returned this slot.
local function take(slot, lane)
  for n = 1, #inUse do inUse[n].charge(slot, lane) end
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

-- Returns the reason why only probes are granted; 0: other calls are granted too.
local function halfOpen() return breaker.probe > 0 and -5 or state.probed > 0 and -1 or 0 end

-- Returns openRetry for the breaker or the backoff of the source; MAX_RETRY if no response to a call
-- can close the breaker, or end the backoff, before the next probe.
local function resumeRetry()
  if state.backoffEnd > now or (breaker.probe == 0 and leaseEnd() == 0) then return MAX_RETRY end
  return min(MAX_RETRY, openRetry(max(breaker.turned, state.probed)))
end

local runs, run = {}, nil
local function grant(n, most, lane, before, interval)
  if n == 0 then return 0, 0, halfOpen(), before end
  if stopped then return 0, 1000000, -2, before end
  if state.uncounted == 1 then return 0, 50000, -4, before end
  local granted, slot, why = 0, 0, 0
  local limit = min(n, max(0, floor(most)))
  run = nil
  while granted < limit do
    slot, why = slotOf(lane)
    if slot > now + horizon then break end
    take(slot, lane)
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
    return granted, dayCount.retry(lane == 2), halfOpen() < 0 and halfOpen() or numberOf[day], before
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
local function interval(lane)
  local most = 1
  if partitions then most = partitions.interval(most, lane) end
  if windowLog then most = windowLog.interval(most, lane) end
  return most / ramp
end
