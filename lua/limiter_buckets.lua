-- limiter_buckets: continues limiter_slots, with its locals. It loads the buckets of scoped
-- policies and applies their events. A bucket is the state of one policy for one value of its
-- scope. A call takes its slot from all its buckets and from the source's policies, or from
-- none.
--
-- The numbers of these policies in the quota (ARGV[3]):
--   unitLog      sliding-window log of units: reach in us, units, units for LOW, grain in us,
--                ns per unit of the pace (0: none), burst of the pace, part of it for HIGH,
--                units that could have been used at once before a loss of state
--   leakyBucket  ns per unit, size, units for HIGH, levels are reported (0 or 1), us that
--                the bucket is kept after its last use
--   minInterval  min and max us between two slots
--   reported     reported limit: units, window in us, units for HIGH, LOW is paced (0 or 1),
--                lease in us
--   concurrency  calls in flight: maximum, maximum for LOW, lease in us
--   breaker      scope with a circuit breaker of its own
-- KEYS[2k], KEYS[2k+1]  state of bucket k, and its calls in flight (the same key with
--          the suffix :calls)
-- ARGV[6]  an object (JSON):
--   policies  per bucket: the number of its policy in the caller's quota
--   events    a list for each event: name, bucket, and
--          ended k TICKET         a call ended: free its in-flight slot
--          refund k UNITS SLOT    leaky bucket: refund of UNITS of the call of SLOT (negative:
--                                 extra charge); SLOT 0: the upstream refunds them now
--          level k UNITS SLOT     leaky bucket: the response to the call of SLOT reports that
--                                 UNITS are available
--          logRefund k SLOT UNITS  log: refund of UNITS of the call of SLOT (negative: extra
--                                 charge)
--          report k TICKET HOW UNITS SLOT LEFT END SLACK   a call ended that cost UNITS.
--                                 HOW: 0 not sent, 1 outcome unknown, 2 response reports
--                                 LEFT units until END (0: not reported; at most SLACK us
--                                 too late), 3 response without a report
--          open k FIRST MOST SENT open the breaker: first probe after FIRST us, pauses
--                                 double up to MOST us. No effect if the breaker opened
--                                 or closed after SENT
--          notSent k SLOT         the probe of this slot was not sent
--          close k SENT           a call sent then succeeded: close (0: in any case)
--   queues    for each queue lane (1 HIGH, 2 LOW), calls and candidates; a candidate is a list
--             of costs, each with the bucket and the call's units
--   tickets   prefix of the tickets, which are numbered from 1 in the order of grants
--   process   name of the process
--   channel   Pub/Sub channel on which the next process for a free in-flight slot is named
--
-- Returns {now, calls of the day, -5 if the source's breaker is open, -1 if a backoff has not ended
--     with a probe, or else 0, birth of the source's state,
--   per queue: calls granted, us until the next call (0: all granted), reason of the
--     rejection (as in limiter_acquire), per grant: wait in us, candidate, 1 if it
--     probes a breaker of a scope, plus 2 if it is a probe of the source
--   per bucket: units left (-1: unknown), units in flight, time of more units (0:
--     unknown)}
--
-- Each bucket stores the birth of the source's state, which is the time at which that state began.
-- If the stored time differs from the source's birth, the bucket's state was lost.

local END_RETRY = 50000 -- us until a rejected process calls again, because a call in flight can end
local SLOT_RETRY = 300000 -- us until a process that waits for an in-flight slot calls again
local WAITER_TTL = 1000000 -- us; a waiting process that has not called for this time is removed
local MAX_HOLD = 20000 -- us; longest time for which an in-flight slot is held before its time slot
local MAX_DELAY = 100000 -- us; a call arrives at the upstream at most this long after its slot
local SPELL = 250000 -- us; the slots of a period of this length share one slack value
local SPELLS = 8 -- number of slack values that are kept
local FAR = 1e15

-- The stored numbers of a reported limit: 1 if the units left are known, units left, units of the
-- window, its end, the slot of its first report; units in flight, slot of the call that finds out the
-- units, LOW's last step, end of the window before, slot of the latest call that has ended; units of
-- calls that ended without a report, and the latest slot of these calls.
local REPORTED = {'known', 'left', 'units', 'till', 'began', 'flying', 'probing', 'paced', 'over', 'last', 'lost', 'lostAt'}

-- Sets named numbers of a bucket from its stored text, which begins with the birth of the state.
local function restore(b, names, text)
  for n, name in ipairs(names) do b[name] = number(text, 16 * n + 1) end
end

-- Ends the window of a reported limit.
local function endWindow(b)
  if b.known == 1 and now >= b.till then b.known, b.over = 0, b.till end
end

-- A sliding-window log is a text with 32 characters per entry: time and units, earliest first.
-- Slots are rounded up to a multiple of the grain, which limits the number of entries. An entry
-- counts until `reach` after its time, so no window of length `reach` exceeds the limit.

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

-- A leaky bucket is stored as `tat`, the time at which it will be empty. A call whose units leak
-- in c us sets tat to max(tat, slot) + c. The refund of a call moves tat back, but not to an
-- earlier time than if that call had never been made: if a later call found the bucket empty, that
-- later call's slot alone determined tat. The slack of a slot is tat - slot, before the slot's call
-- is added: tat can move back by the minimum slack of all later slots. Of the slots in one SPELL,
-- only the minimum slack is kept.
--
-- Example: a unit leaks in 1 s. Calls of one unit at 0 s and 5 s give tat = 6 s. The refund of the
-- first call does not move tat, because the second call found the bucket empty.

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

-- Loads the buckets, whose texts begin with `prefix`, and applies the events.
local function loadBuckets(request, prefix)
  local inForce = {}
  if mine.policies ~= policies then
    for _, s in ipairs(policies) do inForce[s.id] = s end
  end
  local load = {
    unitLog = function(b, s, text)
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
    leakyBucket = function(b, s, text)
      b.tat = text and number(text, 17) or b.from + ceil(s.unitNs * s.size / 1000)
      b.top = text and #text > 32 + #s.kind and number(text, 33) or now + horizon
      for p = 49, text and #text - 31 - #s.kind or 0, 32 do
        b.spells = b.spells or {}
        b.spells[#b.spells + 1] = {number(text, p), number(text, p + 16)}
      end
    end,
    minInterval = function(b, s, text) b.next = text and number(text, 17) or b.from + s.minGap end,
    reported = function(b, s, text)
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
    concurrency = function(b, s)
      redis.call('ZREMRANGEBYSCORE', b.calls, '-inf', format('%.0f', now))
      b.held = redis.call('ZCARD', b.calls)
      -- Calls from before the loss of state can still be in flight.
      if now < birth + s.lease then b.shut = birth + s.lease end
      b.waiters, b.want, b.got, b.left = redis.call('HGETALL', b.key), {0, 0}, {0, 0}, {0, 0}
    end,
    breaker = function(b, _, text)
      for _, name in ipairs(BREAKER) do b[name] = 0 end
      if text then restore(b, BREAKER, text) end
    end,
  }

  local buckets, keys = {}, {}
  for k = 2, #KEYS, 2 do keys[k / 2] = KEYS[k] end
  -- MGET returns no text for a bucket of kind concurrency, because that is a hash.
  local texts = keys[1] and redis.call('MGET', unpack(keys)) or {}
  for k, n in ipairs(request.policies) do
    local s, text = mine.policies[n], texts[k]
    s = inForce[s.id] or s
    local b = {s = s, key = keys[k], calls = KEYS[2 * k + 1], from = birth + quiet, changed = false}
    if text and (#text < 33 or sub(text, 1, 16) ~= prefix) then text = false end
    if text and sub(text, -#s.kind) ~= s.kind then
      -- If the policy's kind has changed, the bucket begins as if it were used up.
      b.changed, b.from, text = true, now + quiet, false
    elseif text and (#text - #s.kind) % 16 ~= 0 then
      text = false
    end
    load[s.kind](b, s, text)
    buckets[k] = b
  end
  if #request.events == 0 then return buckets end

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

  local apply = {
    ended = function(b, ticket)
      if redis.call('ZREM', b.calls, ticket) == 1 then b.held, b.freed = b.held - 1, true end
    end,
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
    logRefund = function(b, slot, units)
      if units < 0 then
        addToLog(b, now, -units)
      elseif slot > birth + horizon then -- an earlier slot was lost with the state
        addToLog(b, slot, -units)
      end
      computeTat(b)
    end,
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
    open = openBreaker,
    notSent = refundProbe,
    close = function(b, sent) closeBreaker(b, sent == 0 and huge or sent) end,
  }
  for _, e in ipairs(request.events) do apply[e[1]](buckets[e[2]], unpack(e, 3)) end
  return buckets
end
