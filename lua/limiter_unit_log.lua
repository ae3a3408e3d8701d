-- limiter_unit_log: a bucket that counts units in a sliding-window log, and can limit the pace in the
-- window.
--
-- The log is a text with 32 characters per entry: time and units, earliest first. Slots are rounded up
-- to a multiple of the grain, which limits the number of entries. An entry counts until `reach` after
-- its time, so no window of length `reach` exceeds the limit.
--
-- Numbers in the quota: reach in us, units, units for LOW, grain in us, ns per unit of the pace (0:
-- none), burst of the pace, part of it for HIGH, units that could have been used at once before a loss
-- of state. Stored: tat of the pace, units in the log, the log.
-- Event: logRefund k SLOT UNITS  refund of UNITS of the call of SLOT (negative: extra charge)

kinds.unitLog = function()
  -- Adds units to the log at a slot; a negative number removes at most the entry's units.
  local function addToLog(b, slot, units)
    local moment = ceil(slot / b.s.grain) * b.s.grain
    local p = #b.log - 31
    while p > 0 and number(b.log, p) > moment do p = p - 32 end
    local at, held = p + 32, 0
    if p > 0 and number(b.log, p) == moment then at, held = p, number(b.log, p + 16) end
    local left = max(0, held + units)
    local entry = left > 0 and format('%16d%16d', moment, left) or ''
    b.log, b.used = sub(b.log, 1, at - 1) .. entry .. sub(b.log, p + 32), b.used + left - held
  end

  -- Fills the log of a bucket whose state was lost, as if the limit were used up: s.atOnce units at the
  -- latest possible slot, and the other units at the pace before it.
  local function fillLog(b, s)
    local chunks, rest = 50, s.units - s.atOnce
    for n = chunks, 1, -1 do
      local units = floor(rest * n / chunks) - floor(rest * (n - 1) / chunks)
      if units > 0 then addToLog(b, birth + horizon - floor((n - 1) * rest * s.paceNs / 1000 / chunks), units) end
    end
    addToLog(b, birth + horizon, s.atOnce)
  end

  -- Recomputes the pace's tat (theoretical arrival time, see GCRA in limiter/doc.go) from the log,
  -- after a refund.
  local function computeTat(b)
    b.tat = 0
    for p = 1, #b.log, 32 do
      b.tat = max(b.tat, number(b.log, p) - b.s.grain) + ceil(number(b.log, p + 16) * b.s.paceNs / 1000)
    end
  end

  return {
    load = function(b, s, text)
      b.tat, b.used, b.log = b.from, 0, ''
      if text then
        b.tat, b.used, b.log = number(text, 17), number(text, 33), sub(text, 49, -1 - #s.kind)
      elseif b.changed then
        addToLog(b, b.from, s.units)
      elseif now < birth + s.reach then
        fillLog(b, s)
      end
      local p = 1
      while p < #b.log and number(b.log, p) <= now - s.reach do
        b.used, p = b.used - number(b.log, p + 16), p + 32
      end
      b.log = sub(b.log, p)
    end,
    wait = function(b, s, units, low)
      local most = low and s.lowUnits or s.units
      local slot, free, p = 0, most - b.used, 1
      local part = free / most
      if units == 0 then return 0, part end
      if s.paceNs > 0 then slot = b.tat - floor((s.burst - 1 - (low and s.highBurst or 0)) * s.paceNs / 1000) end
      -- A call above the limit waits for an empty log.
      while free < units and p < #b.log do
        slot, free, p = max(slot, number(b.log, p) + s.reach), free + number(b.log, p + 16), p + 32
      end
      return slot, part
    end,
    charge = function(b, s, units, slot)
      if units == 0 then return end
      addToLog(b, slot, units)
      if s.paceNs > 0 then b.tat = nextTat(b.tat, slot, units * s.paceNs / 1000) end
    end,
    events = {
      logRefund = function(b, slot, units)
        if units < 0 then
          addToLog(b, now, -units)
        elseif slot > birth + horizon then -- an earlier slot was lost with the state
          addToLog(b, slot, -units)
        end
        computeTat(b)
      end,
    },
    save = function(b, s)
      keep(b, s.reach + horizon + 1000000, format('%16d%16d', b.tat, b.used) .. b.log)
    end,
    view = function(b, s) return max(0, s.units - b.used), 0, #b.log > 0 and number(b.log, 1) + s.reach or 0 end,
  }
end
