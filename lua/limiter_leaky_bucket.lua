-- limiter_leaky_bucket: a bucket whose units leak at a constant rate.
--
-- It is stored as `tat`, the time at which it will be empty. A call whose units leak in c us sets tat
-- to max(tat, slot) + c. The refund of a call moves tat back, but not to an earlier time than if that
-- call had never been made: if a later call found the bucket empty, that later call's slot alone
-- determined tat. The slack of a slot is tat - slot, before the slot's call is added: tat can move back
-- by the minimum slack of all later slots. Of the slots in one SPELL, only the minimum slack is kept.
--
-- Example: a unit leaks in 1 s. Calls of one unit at 0 s and 5 s give tat = 6 s. The refund of the
-- first call does not move tat, because the second call found the bucket empty.
--
-- Numbers in the quota: ns per unit, size, units for HIGH, levels are reported (0 or 1), us that the
-- bucket is kept after its last use. Stored: tat, the latest slot, and slack values with their begin.
-- Events: refund k UNITS SLOT  refund of UNITS of the call of SLOT (negative: extra charge); SLOT 0:
--                              the upstream refunds them now
--         level k UNITS SLOT   the response to the call of SLOT reports that UNITS are available

local SPELL = 250000 -- us; the slots of a period of this length share one slack value
local SPELLS = 8 -- number of slack values that are kept
local FAR = 1e15

kinds.leakyBucket = function()
  -- Returns the slack values of a bucket. A bucket that was empty at its latest slot (b.top) stores none.
  local function spellsOf(b)
    b.spells = b.spells or {{b.top, FAR}}
    return b.spells
  end

  -- Adds the slack of a slot.
  local function noteSlack(b, slot)
    local slack = b.tat - slot
    if slack <= 0 then
      b.spells = slot < b.top and {{slot, FAR}} or nil
    else
      local spells = spellsOf(b)
      if b.top > spells[#spells][1] + SPELL then
        spells[#spells + 1] = {b.top, FAR}
        if #spells > SPELLS then table.remove(spells, 1) end
      end
      for n = #spells, 1, -1 do
        local spell = spells[n]
        if spell[1] < slot then
          spell[2] = min(spell[2], slack)
          break
        end
      end
    end
    b.top = max(b.top, slot)
  end

  -- Returns how far tat can move back after a refund of the slot's call, at most `back` us.
  local function slackAfter(b, slot, back)
    local spells = spellsOf(b)
    for n = #spells, 1, -1 do
      local spell = spells[n]
      back = min(back, spell[2])
      if spell[1] <= slot then
        for later = n, #spells do spells[later][2] = spells[later][2] - back end
        return back
      end
    end
    return 0
  end

  return {
    load = function(b, s, text)
      b.tat = text and number(text, 17) or b.from + ceil(s.unitNs * s.size / 1000)
      b.top = text and #text > 32 + #s.kind and number(text, 33) or now + horizon
      for p = 49, text and #text - 31 - #s.kind or 0, 32 do
        b.spells = b.spells or {}
        b.spells[#b.spells + 1] = {number(text, p), number(text, p + 16)}
      end
    end,
    wait = function(b, s, units, low)
      local kept = low and s.forHigh or 0
      return b.tat + ceil((units - s.size + kept) * s.unitNs / 1000), 1 - (b.tat - now) * 1000 / (s.unitNs * s.size)
    end,
    charge = function(b, s, units, slot)
      noteSlack(b, slot)
      b.tat = nextTat(b.tat, slot, units * s.unitNs / 1000)
    end,
    events = {
      refund = function(b, units, slot)
        local back = floor(units * b.s.unitNs / 1000)
        if back > 0 and slot ~= 0 then back = slackAfter(b, slot, back) end
        b.tat = b.tat - back
      end,
      level = function(b, units, slot)
        -- `own` is the number of units available by the state. `reported` is the reported number, plus
        -- the units restored since the slot. If `reported` is clearly less, another client uses the
        -- upstream's bucket too, and the state gets the value of `reported`.
        local most = b.s.size
        local own, reported = most - (b.tat - now) * 1000 / b.s.unitNs, min(most, units + (now - slot) * 1000 / b.s.unitNs)
        if own > reported + max(2, most / 50) then
          b.tat, b.spells = now + ceil((most - reported) * b.s.unitNs / 1000), {{b.top + 1, FAR}} -- refunds of slots granted so far get no effect: `reported` can include their units
        end
      end,
    },
    save = function(b, s)
      local text = format('%16d%16d', b.tat, b.top)
      for _, spell in ipairs(b.spells or {}) do text = text .. format('%16d%16d', spell[1], spell[2]) end
      keep(b, max(0, b.tat - now) + s.keepFor + 1000000, text)
    end,
    view = function(b, s) return max(0, min(s.size, floor(s.size - (b.tat - now) * 1000 / s.unitNs))), 0, 0 end,
  }
end
