-- limiter_load: the second file of limiter_acquire, after limiter_acquire.lua. It uses that
-- file's locals. It loads the state, applies the quota and the events, and returns the state if
-- only that was requested. limiter_slots then grants slots.

-- The full path, up to the end of limiter_save. It is a function, so that its functions are created
-- faster: for each local that a new function uses, Lua searches the locals of the surrounding function
-- that are in use by other functions.
local function fullPath()

local FORMAT, EPOCH = '02', 2500000
local MAX_BACKOFF, RAMP = 60000000, 10000000
local MAX_UNSAVED = 100000000 -- us; a process that has not saved the day's count for this time sends no calls
local MAX_NAMED_BACKOFF = 10000000 -- us; longest pause after a refused probe whose refusal names a shorter time
local UNUSED_BIRTH = 1 -- us; birth of the state of a source that was never called: its quiet period is long over
local MIN_PROBE_PAUSE = 1000000 -- us; minimum pause between probes; longer than the horizon, so that one run never grants two
local function number(text, i) return sub(text, i, i + 15) + 0 end

-- Encodes named numbers for `decode`.
local function encode(of, names)
  local out = {}
  for n = 1, #names do out[n] = of[names[n]] end
  return format(string.rep('%16d', #names), unpack(out))
end

-- Returns the names of the numbers of each kind of policy. Each name has the function that returns the
-- stricter of two values.
local function numbersOfKinds()
  return {
    partitions = {window = max, highT = max, highB = min, sharedT = max, sharedB = min, lowT = max, lowB = min},
    windowLog = {reach = max, slots = min, lowSlots = min},
    day = {calls = min, reserve = max},
    unitLog = {reach = max, units = min, lowUnits = min, grain = max, paceNs = max, burst = min, highBurst = max, atOnce = max},
    leakyBucket = {unitNs = max, size = min, forHigh = max, reported = max, keepFor = max},
    minInterval = {minGap = max, maxGap = max},
    reported = {units = min, window = max, forHigh = max, paced = max, lease = max},
    concurrency = {slots = min, lowSlots = min, lease = max},
    breaker = {},
  }
end

-- Decodes a stored quota. Fails if a number is missing: another version has stored the quota.
local function decodeTerms(text)
  local terms, kinds = cjson.decode(text), numbersOfKinds()
  assert(#terms.policies > 0 and terms.revision and terms.horizon and terms.quiet and type(terms.stopped) == 'boolean')
  for _, p in ipairs(terms.policies) do
    assert(p.id)
    for name in pairs(kinds[p.kind]) do assert(type(p[name]) == 'number') end
  end
  return terms
end

-- Combines two quotas of one revision, `a` and `b`. Each number gets the stricter of its two values.
local function stricter(a, b)
  if not a or a == b then return b end
  local all, other, of, changed, kinds = cjson.decode(a), cjson.decode(b), {}, false, numbersOfKinds()
  local function set(t, name, value)
    if t[name] ~= value then t[name], changed = value, true end
  end
  for _, p in ipairs(all.policies) do of[p.id] = p end
  for _, p in ipairs(other.policies) do
    local o = of[p.id]
    if not o then
      set(all.policies, #all.policies + 1, p)
    else
      for name, pick in pairs(kinds[p.kind]) do
        if pick == max and p.kind == 'partitions' and (o[name] == 0 or p[name] == 0) then
          set(o, name, 0) -- one of the quotas has no such partition
        else
          set(o, name, pick(o[name], p[name]))
        end
      end
    end
  end
  set(all, 'stopped', all.stopped or other.stopped)
  set(all, 'horizon', min(all.horizon, other.horizon))
  set(all, 'quiet', max(all.quiet, other.quiet))
  return changed and cjson.encode(all) or a
end

-- Returns the next line of a text, which begins at the i-th character, and the begin of the line after
-- it. `guess` is a line that is returned without a copy if it is the next line.
local function nextLine(text, i, guess)
  if guess and hasLine(text, i, guess) then return guess, i + #guess + 1 end
  local eol = find(text, '\n', i, true)
  return sub(text, i, eol - 1), eol + 1
end

local function read(text)
  local s, tats, opened, logs, i = decode(text, STATE, 57), nil, nil, nil, 58 + 16 * #STATE
  assert(sub(text, i - 1, i - 1) == '\n')
  tats, i = nextLine(text, i)
  opened, i = nextLine(text, i)
  s.head = i - 1
  s.inForce, i = nextLine(text, i, quota)
  s.strictest, i = nextLine(text, i)
  logs, i = nextLine(text, i)
  s.format, s.replid, s.rest = sub(text, 1, 2), sub(text, 3, 42), sub(text, i)
  s.tats, s.breaker, s.logs = {}, decode(opened, BREAKER, 1), {}
  for n = 1, #tats, 16 do s.tats[#s.tats + 1] = number(tats, n) end
  s.terms = s.inForce == quota and cjson.decode(quota) or decodeTerms(s.inForce)
  if s.strictest == '' then s.strictest = s.inForce else decodeTerms(s.strictest) end
  for log in string.gmatch(logs, '[^,]+') do
    assert(log == '-' or (#log % 16 == 0 and not find(log, '%D')))
    s.logs[#s.logs + 1] = log ~= '-' and log or ''
  end
  return s
end

local loaded, state = pcall(read, stored)
if not loaded then
  if readOnly then return {} end
  state = {format = FORMAT, rest = '', tats = {}, logs = {}, breaker = {}}
  for _, name in ipairs(STATE) do state[name] = 0 end
  for _, name in ipairs(BREAKER) do state.breaker[name] = 0 end
  state.birth, state.epoch, state.dayBorn, state.uncounted = now, now, now, 1
end
local breaker, replid = state.breaker, replicationID(state.last)

-- Determines the quota in force, and decodes it.
local before, hadStrictest, terms = state.inForce, state.strictest, state.terms
local mine = not readOnly and (quota == before and terms or cjson.decode(quota)) -- the caller's quota
if mine then
  local theirs = terms and terms.revision or -1
  if mine.revision > theirs then
    state.inForce, state.strictest, state.epoch = quota, quota, now
  elseif mine.revision == theirs then
    if now - state.epoch >= EPOCH or now < state.epoch then
      -- Quotas that no caller has sent for a whole epoch no longer count.
      state.inForce = now - state.epoch < 2 * EPOCH and stricter(state.strictest, quota) or quota
      state.strictest, state.epoch = quota, now
    else
      state.inForce, state.strictest = stricter(before, quota), stricter(state.strictest, quota)
    end
  end
  if state.inForce ~= before then terms = state.inForce == quota and mine or cjson.decode(state.inForce) end
end

-- The policies of the whole source. A window has its partitions high, shared and low as elements 1 to 3.
local policies, horizon, quiet, stopped = terms.policies, terms.horizon, terms.quiet, terms.stopped
local windows, logs, day = {}, {}, nil
local numberOf = {} -- the number of each policy in the quota in force
local function addPartitions(s)
  s[1], s[2], s[3] = {T = s.highT, B = s.highB}, {T = s.sharedT, B = s.sharedB}, {T = s.lowT, B = s.lowB}
end
for i, s in ipairs(policies) do
  numberOf[s] = i
  if s.kind == 'partitions' then
    windows[#windows + 1] = s
    addPartitions(s)
  elseif s.kind == 'windowLog' then
    logs[#logs + 1] = s
  elseif s.kind == 'day' then
    day = s
  end
end

-- Returns the TAT with which a partition grants no burst, and nothing before the time `from`.
local function emptyTat(p, from) return from + max(p.B - 1, 0) * p.T end

-- Lets the partitions start without a burst at the time `from`, or later if they are in use until then.
local function startWithoutBurst(from)
  for _, w in ipairs(windows) do
    for n = 1, 3 do w[n].tat = max(w[n].tat, emptyTat(w[n], from)) end
  end
end

-- Returns a log without a free slot.
local function fullLog(s) return string.rep(format('%16d', now + horizon), max(s.slots, s.lowSlots)) end

-- Loads the partitions and logs. If the quota has changed, a changed interval T or burst B of a
-- partition must not allow a second burst, and a new policy starts as if it were used up.
local lost = not loaded
if loaded and before ~= state.inForce then
  local had, w, l = {}, 0, 0
  for _, s in ipairs(state.terms.policies) do
    had[s.id] = s
    if s.kind == 'partitions' then
      addPartitions(s)
      for n = 1, 3 do s[n].tat = state.tats[w + n] end
      w = w + 3
    elseif s.kind == 'windowLog' then
      l = l + 1
      s.log = state.logs[l]
    end
  end
  for _, s in ipairs(windows) do
    for n, p in ipairs(s) do
      local o = had[s.id] and had[s.id][n]
      if not o or not o.tat or (o.T == 0 and p.T > 0) then
        p.tat = emptyTat(p, max(now + quiet, state.backoffEnd))
      elseif o.T > 0 and p.T > 0 then
        p.tat = max(o.tat, o.tat - (o.B - 1) * o.T + (p.B - 1) * p.T)
      else
        p.tat = o.tat
      end
    end
  end
  for _, s in ipairs(logs) do s.log = had[s.id] and had[s.id].log or fullLog(s) end
  if day and not had[day.id] then state.dayEnd, state.used, state.uncounted = 0, 0, 1 end
  state.backHigh, state.backLow = 0, 0
elseif loaded then
  lost = #state.tats ~= 3 * #windows or #state.logs ~= #logs
  for k, s in ipairs(windows) do
    for n, p in ipairs(s) do p.tat = state.tats[3 * k - 3 + n] or 0 end
  end
  for k, s in ipairs(logs) do s.log = state.logs[k] or '' end
end

-- Reads the events, and detects a loss of state.
local back = loaded and state.last - now or 0
lost = lost or back > 10000 or state.replid ~= replid
local events, unused = (ARGV[5] or '') ~= '' and cjson.decode(ARGV[5]) or {}, false
for _, e in ipairs(events) do
  if e[1] == 'unused' and not stored then unused = true end
  if e[1] == 'step' and loaded and state.birth <= e[2] then lost = true end
end
if lost and not readOnly then
  state.backoffEnd = loaded and state.backoffEnd > state.last and now + state.backoffEnd - state.last or 0
  -- After a loss of state an open breaker stays open, and a backoff continues. The success of a call
  -- sent before now can't close it.
  if breaker.probe > 0 then
    breaker.probe, breaker.opened, breaker.turned = max(now, now + breaker.probe - state.last), now, now
  else
    breaker.turned = 0
  end
  -- A backoff still ends with a probe, but a probe in flight is forgotten.
  state.probed = min(state.probed, 1)
  state.birth, state.epoch, state.backoffSet, state.uncounted = now, now, state.probed, 1
  state.backHigh, state.backLow, state.paced = 0, 0, 0
  for _, w in ipairs(windows) do
    for n = 1, 3 do w[n].tat = emptyTat(w[n], max(now + quiet, state.backoffEnd)) end
  end
  for _, s in ipairs(logs) do s.log = fullLog(s) end
  if unused then -- there are no earlier calls to wait for
    state.birth, lost = UNUSED_BIRTH, false
    for _, w in ipairs(windows) do
      for n = 1, 3 do w[n].tat = now end
    end
    for _, s in ipairs(logs) do s.log = '' end
  end
elseif back > 0 then
  now = state.last -- the clock was set back slightly: use the time of the last run
end
local birth = state.birth

if day and (state.dayEnd == 0 or now >= state.dayEnd + MARGIN) then
  local ends = midnights ~= '' and cjson.decode(midnights)
  if ends then
    local n = now < ends[2] + MARGIN and 2 or 3
    if now < ends[1] - MARGIN or now >= ends[n] + MARGIN then
      return redis.error_reply('the clocks of Redis and of this process are more than half a day apart')
    end
    state.used = ends[n - 1] == state.dayEnd and state.nextUsed or 0
    state.dayEnd, state.nextUsed, state.dayBorn = ends[n], 0, now
  elseif mine then
    for _, s in ipairs(mine.policies) do
      if s.kind == 'day' then return {-1} end
    end
  end
end

-- Opens a circuit breaker because of a call sent at `sent`.
local function openBreaker(b, first, most, sent)
  if b.probe > 0 then
    -- A report of the same incident, or of a failed probe, can only lengthen the pauses. The
    -- current pause is counted from its begin.
    b.most = max(b.most, first, most)
    if first > b.pause then b.pause, b.probe = first, max(b.probe, b.turned + first) end
  elseif sent >= b.turned then -- otherwise the call was sent before the breaker closed last
    b.probe, b.opened, b.turned, b.pause, b.most = now + first, now, now, first, max(first, most)
  end
end

-- Closes a breaker if it opened before `sent`, and reports whether it did.
local function closeBreaker(b, sent)
  if b.probe == 0 or sent <= b.opened then return false end
  b.probe, b.turned = 0, now
  return true
end

-- Takes the probe of an open breaker. The pause doubles now, in case the probe fails or is lost.
local function takeProbe(b, slot)
  b.turned, b.pause = slot, min(b.most, 2 * b.pause)
  b.probe = slot + b.pause
end

-- Takes back a probe that was not sent. The next probe is granted soon, and the pause does not grow.
local function refundProbe(b, slot)
  if b.probe > 0 and b.turned == slot then
    b.pause, b.probe, b.turned = max(MIN_PROBE_PAUSE, floor(b.pause / 2)), max(now, slot) + MIN_PROBE_PAUSE, slot - 1
  end
end

-- Returns the time of the next probe if the newest probe is never answered; 0: no probe is in flight.
local function leaseEnd() return state.probed > state.backoffSet and state.probed + state.step or 0 end

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

if #events > 0 then
  local apply = {
    backoff = function(d, base, sent)
      if sent >= state.backoffSet then
        -- A call that was sent before the last refusal does not change `step`.
        local pauseEnd = max(state.backoffEnd, leaseEnd())
        if pauseEnd == 0 or now >= pauseEnd + RAMP + state.step then
          state.step = d > 0 and min(d, base) or base
        elseif d == 0 then
          state.step = max(state.step, base)
        end
        -- A refused probe shows that the last pause was too short, even if the upstream named that pause.
        if d == 0 then d = state.step elseif state.probed > state.backoffSet then d = max(d, min(state.step, MAX_NAMED_BACKOFF)) end
        state.backoffSet = now
      end
      if d > 0 then
        if state.probed == 0 then state.probed = max(1, state.backoffSet) end
        state.backoffEnd = max(state.backoffEnd, now + d)
        startWithoutBurst(state.backoffEnd)
      end
    end,
    resume = function(slot)
      if state.probed == 0 or slot < state.backoffSet then return end
      if now < state.backoffEnd then
        state.probed = max(1, state.backoffSet) -- a call sent earlier was refused for a longer time: the backoff goes on
      else
        state.probed, state.backoffEnd, state.backHigh, state.backLow = 0, now, 0, 0
        startWithoutBurst(now)
      end
    end,
    open = function(first, most, sent) openBreaker(breaker, max(first, MIN_PROBE_PAUSE), most, sent) end,
    close = function(sent)
      if not closeBreaker(breaker, sent) then return end
      if now >= state.backoffEnd + RAMP + state.step then state.step = 0 end -- the next refusal starts with the first pause
      state.backoffEnd, state.backHigh, state.backLow = max(state.backoffEnd, now), 0, 0
      startWithoutBurst(state.backoffEnd)
    end,
    refund = function(slot)
      if slot == state.probed then state.probed, state.step = max(1, state.backoffSet), floor(state.step / 2) end -- the probe was not sent
      refundProbe(breaker, slot)
      if slot <= birth then return end
      if day and slot > state.dayBorn and slot < state.dayEnd - MARGIN and state.used > 0 then state.used = state.used - 1 end
      for _, s in ipairs(logs) do removeFromLog(s, slot) end
    end,
    used = function(e, n, when, rate, most)
      if not day or state.uncounted == 0 then return end
      most = most or 0
      local known = 0
      -- If the saved count is of an earlier day, the calls near that day's end are estimated.
      if e == state.dayEnd then known = n else when = min(when, e - MARGIN) end
      if when > state.dayEnd - 90000000000 - 2 * MARGIN then -- a day has at most 25 hours
        state.used = max(state.used, known + most + floor(rate * max(0, min(now + horizon - when, MAX_UNSAVED)) / 1000000))
      end
      state.used, state.uncounted = max(state.used, known), 0
      local margin = now + horizon - state.dayEnd + MARGIN
      if margin > 0 and when > 0 then
        state.nextUsed = max(state.nextUsed, min(state.used, most + floor(rate * margin / 1000000)))
      end
    end,
  }
  for _, e in ipairs(events) do
    if apply[e[1]] then apply[e[1]](unpack(e, 2)) end
  end
end
if not day then state.uncounted = 0 end

-- After a pause and its probe the rate rises from half to full.
local ramp = 1
if state.probed > 0 then
  ramp = 0.5
elseif state.backoffEnd > 0 and now < state.backoffEnd + RAMP then
  ramp = max(0.5, min(1, 0.5 + 0.5 * (now - state.backoffEnd) / RAMP))
end
local earliest = max(now, state.backoffEnd, leaseEnd(), breaker.probe)

if readOnly then
  local out = {now, birth, terms.revision, stopped and 1 or 0, max(state.backoffEnd, leaseEnd()), floor(ramp * 1000), state.uncounted}
  local function add(...)
    for n = 1, 5 do out[#out + 1] = (select(n, ...)) end
  end
  local function room(p) return p.T > 0 and max(0, min(p.B, floor((earliest - p.tat) / p.T) + p.B)) or 0 end
  for _, s in ipairs(policies) do
    if s.kind == 'partitions' then
      add(1, s.window, room(s[1]), room(s[2]), room(s[3]))
    elseif s.kind == 'windowLog' then
      local n = 0
      for p = 1, #s.log, 16 do if number(s.log, p) > now - s.reach then n = n + 1 end end
      add(2, s.reach, s.slots, s.lowSlots, n)
    elseif s.kind == 'day' then
      add(3, s.calls, s.reserve, state.used, state.dayEnd)
    end
  end
  if breaker.probe > 0 then add(4, max(breaker.probe, state.backoffEnd, leaseEnd()), breaker.opened, breaker.pause, breaker.most) end
  return out
end
