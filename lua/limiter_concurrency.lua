-- limiter_concurrency: a limit of the calls in flight. Each call holds an in-flight slot until it ends
-- or its lease expires.
--
-- Numbers in the quota: slots: the maximum number of calls in flight, lowSlots: the maximum for LOW,
-- lease in us. Stored: in key b.calls (sorted set) the ticket of each call in flight, by the end of its
-- lease; in key b.key (hash) each waiting process and lane, with the time since when it waits, its
-- number of calls, and the time of its last request.
-- Event: ended k TICKET  a call ended

local WAITER_TTL = 1000000 -- us; a waiting process that has not called for this time is removed

kinds.concurrency = function(request)
  -- Counts the in-flight slots for which other processes have waited longer than this process
  -- (b.ahead), and finds the process that is next (b.first).
  local function rank(b)
    b.since, b.ahead, b.first = {now, now}, {0, 0}, nil
    local others, earliestOther = {}, huge
    for n = 1, #b.waiters, 2 do
      local who, lane, since, count, lastSeen = b.waiters[n], string.match(b.waiters[n + 1], '^(%d) (%d+) (%d+) (%d+)$')
      if not lane or lastSeen + 0 < now - WAITER_TTL then
        redis.call('HDEL', b.key, who)
      elseif who == request.process .. ' ' .. lane and b.want[lane + 0] > 0 then
        b.since[lane + 0] = since + 0
      else
        others[#others + 1] = {who, lane + 0, since + 0, count + 0}
      end
    end
    for _, o in ipairs(others) do
      for lane = 1, 2 do
        if o[2] < lane or (o[2] == lane and o[3] < b.since[lane]) then b.ahead[lane] = b.ahead[lane] + min(o[4], b.s.slots) end
      end
      local turns = o[3] + (o[2] - 1) * 1e15
      if turns < earliestOther then b.first, earliestOther = string.match(o[1], '^(.*) %d$'), turns end
    end
  end

  return {
    load = function(b, s)
      redis.call('ZREMRANGEBYSCORE', b.calls, '-inf', format('%.0f', now))
      b.held = redis.call('ZCARD', b.calls)
      -- Calls from before the loss of state can still be in flight.
      if now < birth + s.lease then b.shut = birth + s.lease end
      b.waiters, b.want, b.got, b.left = redis.call('HGETALL', b.key), {0, 0}, {0, 0}, {0, 0}
    end,
    rank = rank,
    wait = function(b, s, _, low)
      local free = (low and s.lowSlots or s.slots) - b.held - b.ahead[low and 2 or 1]
      return free >= 1 and (b.shut or 0) or huge, free / s.slots
    end,
    charge = function(b, _, units, slot, low, n)
      b.held = b.held + 1
      b.got[low and 2 or 1] = b.got[low and 2 or 1] + 1
      keepCall(b, request.tickets .. n, units, slot)
    end,
    events = {
      ended = function(b, ticket)
        if redis.call('ZREM', b.calls, ticket) == 1 then b.held, b.freed = b.held - 1, true end
      end,
    },
    save = function(b, s)
      for lane = 1, 2 do
        local left = b.left[lane]
        if left > 0 then
          -- A process that was granted a slot waits behind all other processes of its lane.
          local since = b.got[lane] > 0 and now or b.since[lane]
          redis.call('HSET', b.key, request.process .. ' ' .. lane, format('%d %.0f %d %.0f', lane, since, left, now))
          redis.call('PEXPIRE', b.key, 10000)
        elseif b.want[lane] > 0 then
          redis.call('HDEL', b.key, request.process .. ' ' .. lane)
        end
      end
      if b.got[1] + b.got[2] > 0 then redis.call('PEXPIRE', b.calls, format('%.0f', ceil(2 * s.lease / 1000))) end
      if b.freed and b.held < s.slots and b.first then redis.call('PUBLISH', request.channel, b.first) end
    end,
    view = function(b, s) return s.slots - b.held, b.held, b.shut or 0 end,
  }
end
