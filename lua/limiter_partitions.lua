-- limiter_partitions: a window of the source, as GCRA (limiter/doc.go) with the partitions high, shared
-- and low. HIGH takes its slots from high and shared, LOW from shared and low.
--
-- Numbers in the quota: window, then interval T in us and burst B of each partition (T 0: no
-- partition). Stored: the TAT of each partition.

-- The step of the GCRA: returns the TAT after a call that takes `us` of the full rate.
local function nextTat(tat, slot, us) return max(tat, slot) + ceil(us / ramp) end

kinds.partitions = function()
  -- Returns the TAT with which a partition grants no burst, and nothing before the time `from`.
  local function emptyTat(p, from) return from + max(p.B - 1, 0) * p.T end

  -- Returns the earliest slot of a partition (huge: there is no such partition).
  local function partitionSlot(p) return p.T > 0 and p.tat - (p.B - 1) * p.T or huge end

  return {
    load = function(had)
      for k, s in ipairs(had.windows) do
        for n, p in ipairs(s) do p.tat = state.tats[3 * k - 3 + n] or 0 end
      end
    end,
    -- A changed interval T or burst B must not allow a second burst.
    replace = function(had)
      for _, s in ipairs(windows) do
        for n, p in ipairs(s) do
          local o = had.byID[s.id] and had.byID[s.id][n]
          if not o or (o.T == 0 and p.T > 0) then
            p.tat = emptyTat(p, max(now + quiet, state.backoffEnd))
          elseif o.T > 0 and p.T > 0 then
            p.tat = max(o.tat, o.tat - (o.B - 1) * o.T + (p.B - 1) * p.T)
          else
            p.tat = o.tat
          end
        end
      end
    end,
    reset = function(unused)
      for _, w in ipairs(windows) do
        for n = 1, 3 do w[n].tat = unused and now or emptyTat(w[n], max(now + quiet, state.backoffEnd)) end
      end
    end,
    -- Lets the partitions start without a burst at the time `from`, or later if they are in use until then.
    startWithoutBurst = function(from)
      for _, w in ipairs(windows) do
        for n = 1, 3 do w[n].tat = max(w[n].tat, emptyTat(w[n], from)) end
      end
    end,
    -- Stores in `taken` of each window the number of the partition that has the slot.
    wait = function(slot, why, first)
      for _, w in ipairs(windows) do
        local a, b = partitionSlot(w[first]), partitionSlot(w[first + 1])
        w.taken = first + 1
        if max(a, earliest) <= max(b, earliest) then b, w.taken = a, first end -- both partitions have a slot now: use the first partition
        if b > slot then slot, why = b, numberOf[w] end
      end
      return slot, why
    end,
    charge = function(slot)
      for _, w in ipairs(windows) do
        local p = w[w.taken]
        p.tat = nextTat(p.tat, slot, p.T)
      end
    end,
    interval = function(most, first)
      for _, w in ipairs(windows) do most = max(most, w[first].T > 0 and w[first].T or w[first + 1].T) end
      return most
    end,
    view = function(s)
      local function room(p) return p.T > 0 and max(0, min(p.B, floor((earliest - p.tat) / p.T) + p.B)) or 0 end
      return 1, s.window, room(s[1]), room(s[2]), room(s[3])
    end,
    save = function()
      local tats = {}
      for _, w in ipairs(windows) do
        for n = 1, 3 do tats[#tats + 1] = format('%16d', w[n].tat) end
      end
      return table.concat(tats)
    end,
  }
end
local partitions = windows[1] and use('partitions')
