-- limiter_reported: a limit that the upstream reports in its responses.
--
-- Numbers in the quota: units, window in us, units for HIGH, LOW is paced (0 or 1), lease in us.
-- Stored: the numbers REPORTED, and in key b.calls (sorted set) the ticket of each call in flight, by
-- the end of its lease.
-- Event: report k TICKET HOW UNITS SLOT LEFT END SLACK  a call ended that cost UNITS. HOW: 0 not sent,
--        1 outcome unknown, 2 response reports LEFT units until END (0: not reported; at most SLACK us
--        too late), 3 response without a report

-- The stored numbers: 1 if the units left are known, units left, units of the window, its end, the slot
-- of its first report; units in flight, slot of the call that finds out the units, LOW's last step, end
-- of the window before, slot of the latest call that has ended; units of calls that ended without a
-- report, and the latest slot of these calls.
local REPORTED = {'known', 'left', 'units', 'till', 'began', 'flying', 'probing', 'paced', 'over', 'last', 'lost', 'lostAt'}
local MAX_DELAY = 100000 -- us; a call arrives at the upstream at most this long after its slot

kinds.reported = function(request)
  -- Ends the window of a reported limit.
  local function endWindow(b)
    if b.known == 1 and now >= b.till then b.known, b.over = 0, b.till end
  end

  -- Applies the remaining units and the end of the window that a response reports. Reported ends are
  -- exact or too late, so the earliest reported end applies. The first report of a new window must
  -- come from a call whose slot is later than the slots of all calls answered before. Later reports
  -- count only if the slot of their call is not earlier than the slot of that first call; otherwise
  -- they are about an earlier window.
  local function applyReport(b, slot, left, till, slack)
    local near = 2 * slack + MAX_DELAY
    -- The response was made between the slot and now, so its window ends at `least` or later.
    -- If `least` is after the known end, the response is about a later window.
    local least = till - 2 * slack - max(0, now - slot)
    -- Units of calls that ended without a report (b.lost) are subtracted, unless these calls
    -- clearly arrived before this call.
    if slot > b.lostAt + MAX_DELAY then b.lost = 0 else left = max(0, left - b.lost) end
    if b.known == 1 and least > b.till + MAX_DELAY and now >= b.till - near and slot > b.last then
      b.known, b.over = 0, min(b.till, now) -- the window ended slightly earlier than assumed
    end
    if b.known == 1 then
      if slot < b.began then return end -- a value of an earlier window
      b.left = min(b.left, left)
      if till < b.till then b.till = till elseif left <= 0 and least + slack > b.till + MAX_DELAY then b.till = till end
    elseif slot > b.last and (slot >= b.over or least > b.over + MAX_DELAY) then
      b.known, b.left, b.till, b.began = 1, left, till, slot
      b.units = max(b.units, left)
    end
  end

  return {
    load = function(b, s, text)
      for _, name in ipairs(REPORTED) do b[name] = 0 end
      b.units = s.units
      if not text then
        redis.call('DEL', b.calls)
        return
      end
      restore(b, REPORTED, text)
      -- Calls whose lease expired without a report count as used.
      local gone = b.flying > 0 and redis.call('ZRANGEBYSCORE', b.calls, '-inf', format('%.0f', now)) or {}
      for _, ticket in ipairs(gone) do
        local units = string.match(ticket, '%d+$') + 0
        b.flying, b.left = max(0, b.flying - units), b.left - units
        b.lost, b.lostAt = b.lost + units, max(b.lostAt, now - s.lease)
      end
      if #gone > 0 then redis.call('ZREMRANGEBYSCORE', b.calls, '-inf', format('%.0f', now)) end
    end,
    wait = function(b, s, units, low, at)
      endWindow(b)
      if b.known == 0 then
        if b.probing > 0 and now < b.probing + s.lease then return huge, 0 end
        return 0, 0
      end
      if at >= b.till then return huge, 0 end
      local left = b.left - (low and s.forHigh or 0)
      -- No slot after the window's end is granted. After the end, one call is granted, whose
      -- response reports the units of the next window.
      if left < units then return max(b.till, now + horizon + 1), 0 end
      if left - b.flying < units then return huge, 0 end
      local slot = 0
      if low and s.paced == 1 then slot = b.paced + (b.till - now) * units / (left - b.flying) - AHEAD end
      return slot, (b.left - b.flying) / max(1, b.units)
    end,
    charge = function(b, s, units, slot, low, n)
      if low and s.paced == 1 and b.known == 1 then
        b.paced = max(b.paced + (b.till - now) * units / max(1, b.left - s.forHigh - b.flying), slot)
      end
      b.flying = b.flying + units
      keepCall(b, request.tickets .. n, units, slot)
      b.charged = true
      if b.known == 0 then b.probing = slot end
    end,
    events = {
      report = function(b, ticket, how, units, slot, left, till, slack)
        endWindow(b)
        local counted = redis.call('ZREM', b.calls, ticket) == 0
        if counted then
          how = how == 2 and 2 or 0 -- the call's lease has expired, so its units are already counted
        else
          b.flying = max(0, b.flying - string.match(ticket, '%d+$'))
        end
        if b.probing == slot then b.probing = 0 end
        if slot < birth + horizon then return end -- the state was lost after this slot was granted
        if how > 0 and not counted and how ~= 2 then
          b.lost, b.lostAt = b.lost + units, max(b.lostAt, slot)
        end
        if how > 0 and not counted and b.known == 1 and slot < b.began and slot >= b.over - MAX_DELAY then
          b.left = b.left - units -- the call could have arrived in the current window
        elseif how == 2 then
          applyReport(b, slot, left, till > 0 and till or slot + b.s.window, slack)
        elseif how > 0 and b.known == 1 and slot >= b.began then
          b.left = b.left - units
        elseif how == 3 and slot >= b.over then -- no report: use the configured limit
          b.known, b.left, b.till, b.began = 1, b.s.units - units, slot + b.s.window + horizon, slot
        end
        if how > 0 then b.last = max(b.last, slot) end
      end,
    },
    save = function(b, s)
      -- The key must not expire while calls can be in flight or reports can arrive.
      keep(b, max(0, b.till - now, b.paced - now) + s.lease + 60000000, encode(b, REPORTED))
      if b.charged then redis.call('PEXPIRE', b.calls, format('%.0f', ceil(2 * s.lease / 1000) + 60000)) end
    end,
    view = function(b, s) return b.known == 1 and max(0, b.left - b.flying) or -1, b.flying, b.known == 1 and b.till or 0 end,
  }
end
