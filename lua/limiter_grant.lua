-- limiter_grant: continues the files of the kinds of buckets. It grants slots to the queues of a source
-- with buckets.

local END_RETRY = 50000 -- us until a rejected process calls again, because a call in flight can end
local SLOT_RETRY = 300000 -- us until a process that waits for an in-flight slot calls again
local MAX_HOLD = 20000 -- us; longest time for which an in-flight slot is held before its time slot

-- Loads the buckets, and applies the events.
local function loadBuckets(request)
  local inForce, operations = {}, {}
  if mine.policies ~= policies then
    for _, s in ipairs(policies) do inForce[s.id] = s end
  end
  local buckets, keys = {}, {}
  for k = 2, #KEYS, 2 do keys[k / 2] = KEYS[k] end
  -- MGET returns no text for a bucket of kind concurrency, because that is a hash.
  local texts = keys[1] and redis.call('MGET', unpack(keys)) or {}
  for k, n in ipairs(request.policies) do
    local s, text = mine.policies[n], texts[k]
    s = inForce[s.id] or s
    local b = {s = s, key = keys[k], calls = KEYS[2 * k + 1], from = birth + quiet}
    if text and (#text < 33 or sub(text, 1, 16) ~= prefix) then text = false end
    if text and sub(text, -#s.kind) ~= s.kind then
      -- If the policy's kind has changed, the bucket begins as if it were used up.
      b.changed, b.from, text = true, now + quiet, false
    elseif text and (#text - #s.kind) % 16 ~= 0 then
      text = false
    end
    b.ops = operations[s.kind] or kinds[s.kind](request)
    operations[s.kind] = b.ops
    b.ops.load(b, s, text)
    buckets[k] = b
  end
  for _, e in ipairs(request.events) do
    local b = buckets[e[2]]
    b.ops.events[e[1]](b, unpack(e, 3))
  end
  return buckets
end

local function grantQueues(request, buckets)
  local tickets = 0

  -- Adds the buckets to the costs of each queue.
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
    if b.s.kind == 'concurrency' then b.ops.rank(b) end
  end

  local out = {now, 0, halfOpen(), birth}
  for _, c in ipairs(queues) do
    local low = c.lane == 2
    local granted, again, why, at = 0, 0, 0, #out + 1
    out[at], out[at + 1], out[at + 2] = 0, 0, 0
    while granted < c.calls do
      if stopped then again, why = 1000000, -2; break end
      if state.uncounted == 1 then again, why = END_RETRY, -4; break end
      if maxHigh < 1 or (low and maxLow < 1) then
        again, why = dayCount.retry(low), numberOf[day]
        break
      end
      local base, baseWhy = slotOf(c.lane)
      base = max(base, birth + quiet)
      local slot, part, chosen, probeBits
      local hint = MAX_RETRY
      why = baseWhy
      for w, all in ipairs(c.candidates) do
        local s, p, because, probes, full = base, 1, baseWhy, 0, nil
        for _, x in ipairs(all) do
          local b = x.b
          local kind = b.s.kind
          local t, left = b.ops.wait(b, b.s, x[2], low, s)
          if t == huge and kind == 'concurrency' then
            full = b
          elseif t > s then
            s, because = t, numberOf[b.s] or 0
          end
          if t == huge then hint = min(hint, kind == 'concurrency' and SLOT_RETRY or END_RETRY) end
          if kind == 'breaker' and b.probe > 0 then probes, hint = 1, min(hint, openRetry(b.turned)) end
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
      take(slot, c.lane)
      for _, x in ipairs(c.candidates[chosen]) do x.b.ops.charge(x.b, x.b.s, x[2], slot, low, tickets) end
      granted, maxHigh = granted + 1, maxHigh - 1
      if low then maxLow = maxLow - 1 end
      local n = #out
      out[n + 1], out[n + 2], out[n + 3] = slot - now, chosen, probeBits
    end
    if now < birth + quiet or lost then why = -3 end
    out[at], out[at + 1] = granted, ceil(again)
    if granted < c.calls then out[at + 2] = why end
  end

  for _, b in ipairs(buckets) do
    local n = #out
    b.ops.save(b, b.s)
    out[n + 1], out[n + 2], out[n + 3] = b.ops.view(b, b.s)
  end
  return out
end

local request = cjson.decode(ARGV[6])
return grantQueues(request, loadBuckets(request))

end
