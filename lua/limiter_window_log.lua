-- limiter_window_log: a window of the source, as a sliding-window log of slots.
--
-- Numbers in the quota: reach in us, slots: the maximum number of slots in it after a call of HIGH,
-- lowSlots: after a call of LOW (0: this log does not count the lane). Stored: the slots.

kinds.windowLog = function()
  -- Returns a log without a free slot.
  local function fullLog(s) return string.rep(format('%16d', now + horizon), max(s.slots, s.lowSlots)) end

  -- Returns the number of slots for a lane: 1 HIGH, 2 LOW.
  local function slotsFor(s, lane) return lane == 1 and s.slots or s.lowSlots end

  -- Removes a slot from a log.
  local function removeFromLog(s, slot)
    -- A log that counts only one lane keeps its slot of this time, because the refunded slot can
    -- be the other lane's slot of the same time.
    for p = min(s.slots, s.lowSlots) > 0 and #s.log - 15 or 0, 1, -16 do
      if number(s.log, p) == slot then
        -- When a slot in the future was granted, the oldest slot was removed from the log,
        -- although the oldest slot still counts until the time of the granted slot. So after a
        -- refund of the granted slot, an entry takes the place of the oldest slot until that
        -- time.
        local ahead = slot > now and format('%16d', slot - s.reach) or ''
        s.log = ahead .. sub(s.log, 1, p - 1) .. sub(s.log, p + 16)
        return
      end
    end
  end

  return {
    load = function(had)
      for k, s in ipairs(had.logs) do s.log = state.logs[k] or '' end
    end,
    replace = function(had)
      for _, s in ipairs(logs) do s.log = had.byID[s.id] and had.byID[s.id].log or fullLog(s) end
    end,
    reset = function(unused)
      for _, s in ipairs(logs) do s.log = unused and '' or fullLog(s) end
    end,
    wait = function(slot, why, lane)
      for _, s in ipairs(logs) do
        local log, share = s.log, slotsFor(s, lane)
        if share > 0 then -- otherwise this log does not count this lane
          local most, at = max(1, floor(share * ramp)), #log >= 16 and number(log, #log - 15) or 0
          if #log >= 16 * most then at = max(at, number(log, #log - 16 * most + 1) + s.reach) end
          if at > slot then slot, why = at, numberOf[s] end
        end
      end
      return slot, why
    end,
    charge = function(slot, lane)
      for _, s in ipairs(logs) do
        if slotsFor(s, lane) > 0 then
          s.log = sub(s.log .. format('%16d', slot), -16 * max(s.slots, s.lowSlots))
        end
      end
    end,
    refund = function(slot)
      for _, s in ipairs(logs) do removeFromLog(s, slot) end
    end,
    interval = function(most, lane)
      for _, s in ipairs(logs) do
        local share = slotsFor(s, lane)
        if share > 0 then most = max(most, s.reach / share) end
      end
      return most
    end,
    view = function(s)
      local n = 0
      for p = 1, #s.log, 16 do if number(s.log, p) > now - s.reach then n = n + 1 end end
      return 2, s.reach, s.slots, s.lowSlots, n
    end,
    save = function()
      local kept = {}
      for n, s in ipairs(logs) do kept[n] = s.log ~= '' and s.log or '-' end
      return table.concat(kept, ',')
    end,
  }
end
local windowLog = logs[1] and use('windowLog')
