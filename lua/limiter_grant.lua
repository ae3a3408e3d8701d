-- limiter_grant: continues limiter_buckets, with its locals. It grants slots to the queues of a
-- source with buckets.

local function grantQueues()
  local request = cjson.decode(ARGV[6])
  local prefix = format('%16d', birth) -- the begin of a bucket's text
  local buckets = loadBuckets(request, prefix)

  -- Each function returns the earliest slot at or after `at` that one bucket allows (huge:
  -- unknown), and the share of the bucket that is left.
  local wait = {
    unitLog = function(b, s, units, low)
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
    leakyBucket = function(b, s, units, low)
      local kept = low and s.forHigh or 0
      return b.tat + ceil((units - s.size + kept) * s.unitNs / 1000), 1 - (b.tat - now) * 1000 / (s.unitNs * s.size)
    end,
    minInterval = function(b) return b.next, 1 end,
    reported = function(b, s, units, low, at)
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
    concurrency = function(b, s, _, low)
      local free = (low and s.lowSlots or s.slots) - b.held - b.ahead[low and 2 or 1]
      return free >= 1 and (b.shut or 0) or huge, free / s.slots
    end,
    breaker = function(b) return b.probe, b.probe > 0 and 0 or 1 end,
  }

  local tickets = 0
  local charge = {
    unitLog = function(b, s, units, slot)
      if units == 0 then return end
      addToLog(b, slot, units)
      if s.paceNs > 0 then b.tat = nextTat(b.tat, slot, units * s.paceNs / 1000) end
    end,
    leakyBucket = function(b, s, units, slot)
      noteSlack(b, slot)
      b.tat = nextTat(b.tat, slot, units * s.unitNs / 1000)
    end,
    -- The interval between the minimum and the maximum is derived from the slot's last digits,
    -- because Lua's random numbers are the same in every run of a script.
    minInterval = function(b, s, _, slot) b.next = slot + s.minGap + floor((s.maxGap - s.minGap) * ((slot * 7919) % 9973) / 9973) end,
    reported = function(b, s, units, slot, low)
      if low and s.paced == 1 and b.known == 1 then
        b.paced = max(b.paced + (b.till - now) * units / max(1, b.left - s.forHigh - b.flying), slot)
      end
      b.flying = b.flying + units
      redis.call('ZADD', b.calls, format('%.0f', slot + s.lease), request.tickets .. tickets .. ':' .. units)
      b.charged = true
      if b.known == 0 then b.probing = slot end
    end,
    concurrency = function(b, s, units, slot, low)
      b.held = b.held + 1
      b.got[low and 2 or 1] = b.got[low and 2 or 1] + 1
      redis.call('ZADD', b.calls, format('%.0f', slot + s.lease), request.tickets .. tickets .. ':' .. units)
    end,
    breaker = function(b, _, _, slot)
      if b.probe > 0 then takeProbe(b, slot) end
    end,
  }

  -- Adds the buckets to the costs of each queue. For each bucket of kind concurrency, counts the
  -- in-flight slots for which other processes have waited longer than this process (b.ahead).
  local queues = request.queues
  for _, c in ipairs(queues) do
    c.ahead = horizon
    for _, costs in ipairs(c.candidates) do
      for _, x in ipairs(costs) do
        local b = buckets[x[1]]
        x.b = b
        if b.s.kind == 'concurrency' then
          c.ahead = MAX_HOLD
          if b.queue ~= c then b.want[c.lane], b.queue = b.want[c.lane] + c.calls, c end
        end
      end
    end
  end
  for _, b in ipairs(buckets) do
    if b.s.kind == 'concurrency' then
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
  end

  local out = {now, 0, halfOpen(), birth}
  for _, c in ipairs(queues) do
    local low, first, second = c.lane == 2, c.lane, c.lane + 1
    local granted, again, why, at = 0, 0, 0, #out + 1
    out[at], out[at + 1], out[at + 2] = 0, 0, 0
    while granted < c.calls do
      if stopped then again, why = 1000000, -2; break end
      if state.uncounted == 1 then again, why = END_RETRY, -4; break end
      if maxHigh < 1 or (low and maxLow < 1) then
        again, why = dayRetry(low), numberOf[day]
        break
      end
      local base, baseWhy = slotOf(first, second)
      base = max(base, birth + quiet)
      local slot, part, chosen, probeBits
      local hint = MAX_RETRY
      why = baseWhy
      for w, all in ipairs(c.candidates) do
        local s, p, because, probes, full = base, 1, baseWhy, 0, nil
        for _, x in ipairs(all) do
          local t, left = wait[x.b.s.kind](x.b, x.b.s, x[2], low, s)
          if t == huge and x.b.s.kind == 'concurrency' then
            full = x.b
          elseif t > s then
            s, because = t, numberOf[x.b.s] or 0
          end
          if t == huge then hint = min(hint, x.b.s.kind == 'concurrency' and SLOT_RETRY or END_RETRY) end
          if x.b.s.kind == 'breaker' and x.b.probe > 0 then probes, hint = 1, min(hint, openRetry(x.b.turned)) end
          p = min(p, left)
        end
        if full then
          -- A process waits for an in-flight slot only if no other bucket delays its call.
          if s <= now + c.ahead and full.by ~= c then full.left[c.lane], full.by = full.left[c.lane] + c.calls - granted, c end
          s, because = huge, numberOf[full.s] or 0
        end
        -- A candidate with the earliest slot gets the call. Of several, a candidate whose open
        -- breaker can be probed is preferred, and then the candidate with the larger share left.
        if not slot or s < slot or (s == slot and (probes > probeBits or (probes == probeBits and p > part))) then
          slot, part, chosen, why, probeBits = s, p, w, because, probes
        end
      end
      if slot > now + c.ahead then
        again = slot == huge and hint or min(hint, max(1000, slot - now - floor(c.ahead / 2)))
        if halfOpen() < 0 then
          why = halfOpen()
          again = min(again, resumeRetry())
        end
        break
      end
      slot, tickets = ceil(slot), tickets + 1
      if halfOpen() < 0 then probeBits = probeBits + 2 end
      take(slot, first)
      for _, x in ipairs(c.candidates[chosen]) do charge[x.b.s.kind](x.b, x.b.s, x[2], slot, low) end
      granted, maxHigh = granted + 1, maxHigh - 1
      if low then maxLow = maxLow - 1 end
      local n = #out
      out[n + 1], out[n + 2], out[n + 3] = slot - now, chosen, probeBits
    end
    if now < birth + quiet or lost then why = -3 end
    out[at], out[at + 1] = granted, ceil(again)
    if granted < c.calls then out[at + 2] = why end
  end

  -- Stores a bucket's text for `life` us.
  local function keep(b, life, text)
    redis.call('SET', b.key, prefix .. text .. b.s.kind, 'PX', format('%d', max(1000, ceil(life / 1000))))
  end
  local save = {
    unitLog = function(b, s)
      keep(b, s.reach + horizon + 1000000, format('%16d%16d', b.tat, b.used) .. b.log)
      return max(0, s.units - b.used), 0, #b.log > 0 and number(b.log, 1) + s.reach or 0
    end,
    leakyBucket = function(b, s)
      local text = format('%16d%16d', b.tat, b.top)
      for _, spell in ipairs(b.spells or {}) do text = text .. format('%16d%16d', spell[1], spell[2]) end
      keep(b, max(0, b.tat - now) + s.keepFor + 1000000, text)
      return max(0, min(s.size, floor(s.size - (b.tat - now) * 1000 / s.unitNs))), 0, 0
    end,
    minInterval = function(b)
      keep(b, max(0, b.next - now) + 1000000, format('%16d', b.next))
      return now >= b.next and 1 or 0, 0, b.next
    end,
    reported = function(b, s)
      -- The key must not expire while calls can be in flight or reports can arrive.
      keep(b, max(0, b.till - now, b.paced - now) + s.lease + 60000000, encode(b, REPORTED))
      if b.charged then redis.call('PEXPIRE', b.calls, format('%.0f', ceil(2 * s.lease / 1000) + 60000)) end
      return b.known == 1 and max(0, b.left - b.flying) or -1, b.flying, b.known == 1 and b.till or 0
    end,
    concurrency = function(b, s)
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
      return s.slots - b.held, b.held, b.shut or 0
    end,
    breaker = function(b)
      if b.turned > 0 then keep(b, max(0, b.probe - now) + 10 * b.most + 60000000, encode(b, BREAKER)) end
      return b.probe > 0 and 0 or 1, 0, b.probe
    end,
  }
  for _, b in ipairs(buckets) do
    local n = #out
    out[n + 1], out[n + 2], out[n + 3] = save[b.s.kind](b, b.s)
  end
  return out
end
