-- limiter_day: the calls of a source per calendar day, with a reserve for HIGH. LOW spreads its calls
-- over the day. Both days count a call within MARGIN of midnight.
--
-- Numbers in the quota: calls per day, reserve: millionths of a call per second that are kept for
-- HIGH. Stored: numbers of STATE.

-- The limits at the present time: calls of both lanes, calls of LOW, LOW's pace in us per call, and the
-- number of the policy that sets the pace.
local maxHigh, maxLow, pace, paceWhy = huge, huge, 0, 0

kinds.day = function()
  local MAX_UNSAVED = 100000000 -- us; a process that has not saved the day's count for this time sends no calls

  return {
    load = function() end,
    replace = function(had)
      if not had.byID[day.id] then state.dayEnd, state.used, state.uncounted = 0, 0, 1 end
    end,
    reset = function() state.paced, state.uncounted = 0, 1 end,
    -- Begins a new day if the stored day has ended. Returns a reply if that is not possible.
    begin = function()
      if state.dayEnd > 0 and now < state.dayEnd + MARGIN then return nil end
      local ends = midnights ~= '' and cjson.decode(midnights)
      if ends then
        local n = now < ends[2] + MARGIN and 2 or 3
        if now < ends[1] - MARGIN or now >= ends[n] + MARGIN then
          return redis.error_reply('the clocks of Redis and of this process are more than half a day apart')
        end
        state.used = ends[n - 1] == state.dayEnd and state.nextUsed or 0
        state.dayEnd, state.nextUsed, state.dayBorn = ends[n], 0, now
      elseif mine then
        for _, s in ipairs(mine.policies) do
          if s.kind == 'day' then return {-1} end
        end
      end
    end,
    -- Applies the count of calls that a process has saved (event used).
    restore = function(e, n, when, rate, most)
      if state.uncounted == 0 then return end
      most = most or 0
      local known = 0
      -- If the saved count is of an earlier day, the calls near that day's end are estimated.
      if e == state.dayEnd then known = n else when = min(when, e - MARGIN) end
      if when > state.dayEnd - 90000000000 - 2 * MARGIN then -- a day has at most 25 hours
        state.used = max(state.used, known + most + floor(rate * max(0, min(now + horizon - when, MAX_UNSAVED)) / 1000000))
      end
      state.used, state.uncounted = max(state.used, known), 0
      local margin = now + horizon - state.dayEnd + MARGIN
      if margin > 0 and when > 0 then
        state.nextUsed = max(state.nextUsed, min(state.used, most + floor(rate * margin / 1000000)))
      end
    end,
    -- Computes the limits at the present time.
    limit = function()
      maxHigh, maxLow, pace = dayLimits(day, state.used, state.dayEnd)
      if pace > 0 then paceWhy = numberOf[day] end
      if now + horizon >= state.dayEnd - MARGIN then
        maxHigh = min(maxHigh, day.calls - state.nextUsed)
        local left = day.calls - state.nextUsed - day.reserve / 1000000 * 86400
        maxLow = min(maxLow, left)
        if left >= 1 then pace = max(pace, ceil(86400000000 / left)) end
      end
    end,
    wait = function(slot, why, lane)
      if lane == 2 and pace > 0 and ceil(state.paced + pace) - AHEAD > slot then slot, why = ceil(state.paced + pace) - AHEAD, paceWhy end
      return slot, why
    end,
    charge = function(slot, lane)
      if lane == 2 and pace > 0 then state.paced = max(ceil(state.paced + pace), slot) end
      if slot >= state.dayEnd - MARGIN then state.nextUsed = state.nextUsed + 1 end
      state.used = state.used + 1
    end,
    refund = function(slot)
      if slot > state.dayBorn and slot < state.dayEnd - MARGIN and state.used > 0 then state.used = state.used - 1 end
    end,
    -- Returns the us until a rejected caller calls again because the day has no call for its lane. The
    -- calls kept for HIGH become fewer during the day, so LOW can call again before the day's end.
    retry = function(low)
      local wait, left = state.dayEnd + MARGIN - now, day.calls - state.used
      local forLow = low and left >= 1 and wait - (left - 1) / day.reserve * 1e12 or 0
      if forLow > 0 then wait = forLow + 1000 end
      return max(1, min(MAX_RETRY, ceil(wait)))
    end,
    view = function(s) return 3, s.calls, s.reserve, state.used, state.dayEnd end,
  }
end
local dayCount = day and use('day')
