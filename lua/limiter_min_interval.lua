-- limiter_min_interval: a minimum interval between two slots.
--
-- Numbers in the quota: min and max us between two slots. Stored: the earliest next slot.

kinds.minInterval = function()
  return {
    load = function(b, s, text) b.next = text and number(text, 17) or b.from + s.minGap end,
    wait = function(b) return b.next, 1 end,
    -- The interval between the minimum and the maximum is derived from the slot's last digits,
    -- because Lua's random numbers are the same in every run of a script.
    charge = function(b, s, _, slot) b.next = slot + s.minGap + floor((s.maxGap - s.minGap) * ((slot * 7919) % 9973) / 9973) end,
    save = function(b)
      keep(b, max(0, b.next - now) + 1000000, format('%16d', b.next))
    end,
    view = function(b) return now >= b.next and 1 or 0, 0, b.next end,
  }
end
