-- limiter_load: the second file of limiter_acquire, after limiter_acquire.lua. It uses that
-- file's locals. It loads the state, applies the quota and the events, and returns the state if
-- only that was requested. limiter_slots then grants slots.

local FORMAT, EPOCH = '01', 2500000
local MAX_BACKOFF, RAMP = 60000000, 10000000
local MAX_UNSAVED = 100000000 -- us; a process that has not saved the day's count for this time sends no calls
local LINE = '%s%s%16d%s%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d'
local MAX_NAMED_BACKOFF = 10000000 -- us; longest pause after a refused probe whose refusal names a shorter time
local UNUSED_BIRTH = 1 -- us; birth of the state of a source that was never called: its quiet period is long over
local MIN_PROBE_PAUSE = 1000000 -- us; minimum pause between probes; longer than the horizon, so that one run never grants two
local OTHERS = '----------------------------------------' -- replaces the quota's name if the fast path is not allowed
local find, huge = string.find, math.huge
local last, backHigh, backLow, paced, used, dayEnd = 0, 0, 0, 0, 0, 0
-- The state of the circuit breaker: next probe (0: closed), opened at, begin of the current pause (or
-- closed at), pause, longest pause.
local nextProbe, began, pauseStart, pause, maxPause = 0, 0, 0, 0, 0
-- `probed` is 0 without a backoff, and after a probe was answered and not refused. During a backoff
-- it is the slot of the newest probe, or the time of the last refusal if no probe was granted since
-- then.
local probed = 0
local birth, epoch, backoffEnd, backoffSet, step, nextUsed, dayBorn, uncounted = now, now, 0, 0, 0, 0, now, 1
local tats, inForce, strictest, logs, rest, loaded = {}, nil, nil, {}, '', nil
local readOnly = quota == ''
local name = ARGV[4] .. (find(replid, '[^0]') and process or anyProcess) -- anyProcess: this server has no replication ID
state = redis.call('GET', KEYS[1])
local missing = not state

-- Returns the time of the next probe if the newest probe is never answered; 0: no probe is in flight.
local function leaseEnd() return probed > backoffSet and probed + step or 0 end

local function number(text, i) return sub(text, i, i + 15) + 0 end

-- WIDTH is the length of a section of the quota, as a count of numbers, by the kind of the section.
local WIDTH = {L = 7, R = 3, D = 2, S = 9, G = 6, P = 3, N = 6, C = 4, H = 1}
-- The sections of scoped policies (limiter_grant). A sign stands for each number after the first
-- one, which identifies the policy: + if the greater value is stricter, - if the lesser value is.
local STRICTER = {S = '+--++-++', G = '+-+++', P = '++', N = '-++++', C = '--+', H = ''}
local function sections(text)
  local all, i = {}, 50
  while i <= #text do
    local kind = sub(text, i, i)
    local s = {kind = kind, key = kind == 'D' and kind or kind .. sub(text, i + 1, i + 16)}
    for n = 1, WIDTH[kind] do s[n] = number(text, i + 16 * n - 15) end
    all[#all + 1] = s
    i = i + 1 + 16 * WIDTH[kind]
  end
  return all
end

local function text(head, all)
  local out = {head}
  for _, s in ipairs(all) do
    out[#out + 1] = s.kind
    for n = 1, WIDTH[s.kind] do out[#out + 1] = format('%16d', s[n]) end
  end
  return table.concat(out)
end

local function read()
  last, used, paced, backHigh, backLow = number(state, 99), number(state, 147), number(state, 163), number(state, 179), number(state, 195)
  dayEnd, birth, epoch, backoffEnd, backoffSet = number(state, 211), number(state, 227), number(state, 243), number(state, 259), number(state, 275)
  step, nextUsed, dayBorn, uncounted = number(state, 291), number(state, 307), number(state, 323), number(state, 339)
  tats[1], tats[2], tats[3] = number(state, 115), number(state, 131), number(state, 355)
  local eol = find(state, '\n', 1, true)
  for i = 371, eol - 16, 16 do tats[#tats + 1] = number(state, i) end
  local e2 = find(state, '\n', eol + 1, true)
  local e3 = find(state, '\n', e2 + 1, true)
  local e4 = find(state, '\n', e3 + 1, true)
  inForce, strictest, rest = sub(state, eol + 1, e2 - 1), sub(state, e2 + 1, e3 - 1), sub(state, e4 + 1)
  assert(#sections(inForce) > 0 and #sections(strictest) > 0)
  for r in string.gmatch(sub(state, e3 + 1, e4 - 1), '[^,]+') do
    assert(r == '-' or (#r % 16 == 0 and find(r, '^%d*$')))
    logs[#logs + 1] = r ~= '-' and r or ''
  end
  -- The state has a line B from the start of a backoff until a probe was answered and not refused.
  if find(rest, '^B[%d ]+\n') then
    probed, rest = number(rest, 2), sub(rest, find(rest, '\n', 1, true) + 1)
  end
  -- The state has a line P for the circuit breaker from the time when the breaker first opens. A
  -- release without a breaker keeps the line, and obeys its first two numbers as a backoff until the
  -- next probe. If that release then writes a later end of the backoff, it has received a backoff; if
  -- it writes an earlier end, it has lost its state.
  if find(rest, '^P[%d ]+\n') then
    local other, next = number(rest, 2), number(rest, 18)
    local a, b, c, d = number(rest, 34), number(rest, 50), number(rest, 66), number(rest, 82)
    if backoffEnd >= max(other, next) then
      if backoffEnd == max(other, next) then backoffEnd = other end
      nextProbe, began, pauseStart, pause, maxPause = next, a, b, c, d
    end
    rest = sub(rest, find(rest, '\n', 1, true) + 1)
  end
  loaded = true
end
if state and not pcall(read) then
  state, tats, logs, inForce, strictest, rest, loaded = false, {}, {}, nil, nil, '', nil
  last, backHigh, backLow, paced, used, dayEnd, birth, probed = 0, 0, 0, 0, 0, 0, now, 0
  epoch, backoffEnd, backoffSet, step, nextUsed, dayBorn, uncounted = now, 0, 0, 0, 0, now, 1
end
if readOnly then
  if not state then return {} end
  quota = inForce
end

-- Combines two quotas of one revision. Each number gets the stricter of its two values.
local function stricter(a, b)
  if not a or a == b then return b end
  local of, all = {}, sections(a)
  for _, s in ipairs(all) do of[s.key] = s end
  for _, s in ipairs(sections(b)) do
    local o = of[s.key]
    if not o then
      all[#all + 1] = s
    elseif s.kind == 'L' then
      for n = 2, 6, 2 do
        if o[n] == 0 or s[n] == 0 then o[n], o[n + 1] = 0, 0
        else o[n], o[n + 1] = max(o[n], s[n]), min(o[n + 1], s[n + 1]) end
      end
    elseif s.kind == 'R' then
      o[2], o[3] = min(o[2], s[2]), min(o[3], s[3])
    elseif STRICTER[s.kind] then
      for n = 2, WIDTH[s.kind] do
        o[n] = sub(STRICTER[s.kind], n - 1, n - 1) == '+' and max(o[n], s[n]) or min(o[n], s[n])
      end
    else
      o[1], o[2] = min(o[1], s[1]), max(o[2], s[2])
    end
  end
  local head = sub(b, 1, 16) .. max(sub(a, 17, 17), sub(b, 17, 17))
    .. format('%16d%16d', min(number(a, 18), number(b, 18)), max(number(a, 34), number(b, 34)))
  return text(head, all)
end

-- Determines the quota in force.
local before = inForce
if not readOnly then
  local mine, theirs = number(quota, 1), inForce and number(inForce, 1) or -1
  if mine > theirs then
    inForce, strictest, epoch = quota, quota, now
  elseif mine == theirs then
    if now - epoch >= EPOCH or now < epoch then
      -- Quotas that no caller has sent for a whole epoch no longer count.
      inForce, strictest, epoch = now - epoch < 2 * EPOCH and stricter(strictest, quota) or quota, quota, now
    else
      inForce, strictest = stricter(inForce, quota), stricter(strictest, quota)
    end
  end
end

local policies = sections(inForce)
local horizon, quiet = number(inForce, 18), number(inForce, 34)
local T, B, reach, slots, lowSlots, day = {}, {}, {}, {}, {}, nil
local index, logIndex = {}, {}
for i, s in ipairs(policies) do
  if s.kind == 'L' then
    for n = 2, 6, 2 do T[#T + 1], B[#B + 1] = s[n], s[n + 1] end
    index[#T / 3] = i
  elseif s.kind == 'R' then
    reach[#reach + 1], slots[#slots + 1], lowSlots[#lowSlots + 1] = s[1], s[2], s[3]
    logIndex[#reach], s.log = i, #reach
  elseif s.kind == 'D' then
    day, s.day = s, i
  end
  s.index = i
end

-- Converts the state to a changed quota. A changed interval T or burst B of a partition must not
-- allow a second burst, and a new policy starts as if it were used up.
if loaded and before ~= inForce then
  local tatsOf, ringOf, had = {}, {}, {}
  local l, r = 0, 0
  for _, s in ipairs(sections(before)) do
    had[s.key] = s
    if s.kind == 'L' then tatsOf[s.key] = l; l = l + 3
    elseif s.kind == 'R' then r = r + 1; ringOf[s.key] = logs[r] end
  end
  local newTats, newRings = {}, {}
  for _, s in ipairs(policies) do
    local o = had[s.key]
    if s.kind == 'L' then
      for n = 2, 6, 2 do
        local tat = o and tats[tatsOf[s.key] + n / 2]
        if not tat or (o[n] == 0 and s[n] > 0) then
          tat = max(now + quiet, backoffEnd) + max(s[n + 1] - 1, 0) * s[n]
        elseif o[n] > 0 and s[n] > 0 then
          tat = max(tat, tat - (o[n + 1] - 1) * o[n] + (s[n + 1] - 1) * s[n])
        end
        newTats[#newTats + 1] = tat
      end
    elseif s.kind == 'R' then
      newRings[#newRings + 1] = o and ringOf[s.key] or string.rep(format('%16d', now + horizon), max(s[2], s[3]))
    elseif s.kind == 'D' and not o then
      dayEnd, used, uncounted = 0, 0, 1
    end
  end
  for n = #newTats + 1, 3 do newTats[n] = now end
  tats, logs, backHigh, backLow = newTats, newRings, 0, 0
end

-- Detects a loss of state and reads the events.
local back = loaded and last - now or 0
local lost = not loaded or back > 10000 or #tats ~= max(3, #T) or #logs ~= #reach or sub(state, 3, 42) ~= replid
local events, i, unused = {}, 1, false
if ARGV[6] then
  for word in string.gmatch(ARGV[6], '%S+') do events[#events + 1] = word end
end
while events[i] do
  if events[i] == 'unused' and missing then unused = true end
  if events[i] == 'step' and loaded and birth <= events[i + 1] + 0 then lost = true end
  i = i + 1
end
if lost and not readOnly then
  backoffEnd = loaded and backoffEnd > last and now + backoffEnd - last or 0
  -- After a loss of state an open breaker stays open, and a backoff continues. The success of a call
  -- sent before now can't close it.
  if nextProbe > 0 then nextProbe, began, pauseStart = max(now, now + nextProbe - last), now, now else pauseStart = 0 end
  -- A backoff still ends with a probe, but a probe in flight is forgotten.
  probed = min(probed, 1)
  birth, epoch, backoffSet, backHigh, backLow, paced, uncounted = now, now, probed, 0, 0, 0, 1
  tats, logs = {now, now, now}, {}
  for n = 1, #T do tats[n] = max(now + quiet, backoffEnd) + max(B[n] - 1, 0) * T[n] end
  for n = 1, #reach do logs[n] = string.rep(format('%16d', now + horizon), max(slots[n], lowSlots[n])) end
  if unused then -- there are no earlier calls to wait for
    birth, lost = UNUSED_BIRTH, false
    for n = 1, #T do tats[n] = now end
    for n = 1, #reach do logs[n] = '' end
  end
elseif back > 0 then
  now = last -- the clock was set back slightly: use the time of the last run
end

if day and (dayEnd == 0 or now >= dayEnd + MARGIN) then
  if ARGV[5] ~= '' then
    local e
    for n = 17, 33, 16 do
      if not e and now < number(ARGV[5], n) + MARGIN then e = n end
    end
    if not e or now < number(ARGV[5], 1) - MARGIN then
      return redis.error_reply('the clocks of Redis and of this process are more than half a day apart')
    end
    used = number(ARGV[5], e - 16) == dayEnd and nextUsed or 0
    dayEnd, nextUsed, dayBorn = number(ARGV[5], e), 0, now
  elseif find(quota, 'D', 1, true) and not readOnly then
    return {-1}
  end
end

i = 1
while events[i] do
  if events[i] == 'backoff' then
    local d, base, sent = events[i + 1] + 0, events[i + 2] + 0, events[i + 3] + 0
    if sent >= backoffSet then
      -- A call that was sent before the last refusal does not change `step`.
      local pauseEnd = max(backoffEnd, leaseEnd())
      if pauseEnd == 0 or now >= pauseEnd + RAMP + step then
        step = d > 0 and min(d, base) or base
      elseif d == 0 then
        step = max(step, base)
      end
      -- A refused probe shows that the last pause was too short, even if the upstream named that pause.
      if d == 0 then d = step elseif probed > backoffSet then d = max(d, min(step, MAX_NAMED_BACKOFF)) end
      backoffSet = now
    end
    if d > 0 then
      if probed == 0 then probed = max(1, backoffSet) end
      backoffEnd = max(backoffEnd, now + d)
      for n = 1, #T do tats[n] = max(tats[n], backoffEnd + max(B[n] - 1, 0) * T[n]) end
    end
  elseif events[i] == 'resume' then
    if probed > 0 and events[i + 1] + 0 >= backoffSet then
      if now < backoffEnd then
        probed = max(1, backoffSet) -- a call sent earlier was refused for a longer time: the backoff goes on
      else
        probed, backoffEnd, backHigh, backLow = 0, now, 0, 0
        for n = 1, #T do tats[n] = max(tats[n], now + max(B[n] - 1, 0) * T[n]) end
      end
    end
  elseif events[i] == 'open' then
    local first, most, sent = max(events[i + 1] + 0, MIN_PROBE_PAUSE), events[i + 2] + 0, events[i + 3] + 0
    if nextProbe > 0 then
      -- A report of the same incident, or of a failed probe, can only lengthen the pauses. The
      -- current pause is counted from its begin.
      maxPause = max(maxPause, first, most)
      if first > pause then pause, nextProbe = first, max(nextProbe, pauseStart + first) end
    elseif sent >= pauseStart then -- otherwise the call was sent before the breaker closed last
      nextProbe, began, pauseStart, pause, maxPause = now + first, now, now, first, max(first, most)
    end
  elseif events[i] == 'close' then
    if nextProbe > 0 and events[i + 1] + 0 > began then
      if now >= backoffEnd + RAMP + step then step = 0 end -- the next refusal starts with the first pause
      nextProbe, pauseStart, backoffEnd, backHigh, backLow = 0, now, max(backoffEnd, now), 0, 0
      for n = 1, #T do tats[n] = max(tats[n], backoffEnd + max(B[n] - 1, 0) * T[n]) end
    end
  elseif events[i] == 'refund' then
    local slot = events[i + 1] + 0
    if slot == probed then probed, step = max(1, backoffSet), floor(step / 2) end -- the probe was not sent
    if nextProbe > 0 and slot == pauseStart then
      -- The probe was not sent. The next probe is granted soon, and the pause does not grow.
      pause, nextProbe, pauseStart = max(MIN_PROBE_PAUSE, floor(pause / 2)), max(now, slot) + MIN_PROBE_PAUSE, slot - 1
    end
    if slot > birth then
      if day and slot > dayBorn and slot < dayEnd - MARGIN and used > 0 then used = used - 1 end
      for n = 1, #logs do
        -- A log that counts only one lane keeps its slot of this time, because the refunded slot can
        -- be the other lane's slot of the same time.
        for p = min(slots[n], lowSlots[n]) > 0 and #logs[n] - 15 or 0, 1, -16 do
          if number(logs[n], p) == slot then
            -- When a slot in the future was granted, the oldest slot was removed from the log,
            -- although the oldest slot still counts until the time of the granted slot. So after a
            -- refund of the granted slot, an entry takes the place of the oldest slot until that
            -- time.
            local ahead = slot > now and format('%16d', slot - reach[n]) or ''
            logs[n] = ahead .. sub(logs[n], 1, p - 1) .. sub(logs[n], p + 16)
            break
          end
        end
      end
    end
  elseif events[i] == 'used' and day then
    local e, n, when, rate = events[i + 1] + 0, events[i + 2] + 0, events[i + 3] + 0, events[i + 4] + 0
    local most = tonumber(events[i + 5]) or 0
    if uncounted == 1 then
      local known = 0
      -- If the saved count is of an earlier day, the calls near that day's end are estimated.
      if e == dayEnd then known = n else when = min(when, e - MARGIN) end
      if when > dayEnd - 90000000000 - 2 * MARGIN then -- a day has at most 25 hours
        used = max(used, known + most + floor(rate * max(0, min(now + horizon - when, MAX_UNSAVED)) / 1000000))
      end
      used, uncounted = max(used, known), 0
      local margin = now + horizon - dayEnd + MARGIN
      if margin > 0 and when > 0 then nextUsed = max(nextUsed, min(used, most + floor(rate * margin / 1000000))) end
    end
  end
  i = i + 1
end
if not day then uncounted = 0 end

-- After a pause and its probe the rate rises from half to full.
local ramp = 1
if probed > 0 then ramp = 0.5
elseif backoffEnd > 0 and now < backoffEnd + RAMP then ramp = max(0.5, min(1, 0.5 + 0.5 * (now - backoffEnd) / RAMP)) end
local earliest, stopped = max(now, backoffEnd, leaseEnd(), nextProbe), sub(inForce, 17, 17) == '1'

if readOnly then
  local out = {now, birth, number(inForce, 1), stopped and 1 or 0, max(backoffEnd, leaseEnd()), floor(ramp * 1000), uncounted}
  local l = 0
  for _, s in ipairs(policies) do
    if s.kind == 'L' then
      out[#out + 1], out[#out + 2] = 1, s[1]
      for n = 1, 3 do
        local room = T[l + n] > 0 and floor((earliest - tats[l + n]) / T[l + n]) + B[l + n] or 0
        out[#out + 1] = max(0, min(B[l + n], room))
      end
      l = l + 3
    elseif s.kind == 'R' then
      local n, log = 0, logs[s.log]
      for p = 1, #log, 16 do if number(log, p) > now - s[1] then n = n + 1 end end
      out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4], out[#out + 5] = 2, s[1], s[2], s[3], n
    elseif s.kind == 'D' then
      out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4], out[#out + 5] = 3, s[1], s[2], used, dayEnd
    end
  end
  if nextProbe > 0 then
    local n = #out
    out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = 4, max(nextProbe, backoffEnd, leaseEnd()), began, pause, maxPause
  end
  return out
end
