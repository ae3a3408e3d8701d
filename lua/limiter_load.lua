-- limiter_load: the second half of limiter_acquire, which stands in front of it and
-- says what both take and return. Its locals are ours. What the state says, what has
-- happened, and what a look shows; limiter_slots, behind it, gives out the slots.

local FORMAT, EPOCH = '01', 2500000
local BRAKE_MOST, RAMP = 60000000, 10000000
local UNWRITTEN = 100000000 -- no process calls on for so long without writing the day's count down
local LINE = '%s%s%16d%s%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d'
local PROBE_LEAST = 1000000 -- between two probes; longer than a horizon, so that no call reserves two
local OTHERS = '----------------------------------------' -- in place of the name of a quota that is not in force alone
local find, huge = string.find, math.huge
local last, backHigh, backLow, paced, used, dayEnd = 0, 0, 0, 0, 0, 0
-- The probing stop: when the next probe may go (0: there is none), when it began, when
-- the pause now began (or the last stop ended), the pause, and the longest.
local probe, began, turned, pause, pauseMost = 0, 0, 0, 0, 0
local birth, epoch, brake, braked, step, nextUsed, dayBorn, uncounted = now, now, 0, 0, 0, 0, now, 1
local tats, held, strictest, rings, rest, seen = {}, nil, nil, {}, '', nil
local looking = quota == ''
local name = ARGV[4] .. (find(replid, '[^0]') and process or anybody) -- this server has no id to be told apart by
state = redis.call('GET', KEYS[1])

local function number(text, i) return sub(text, i, i + 15) + 0 end

-- The sections of a quota: kind, key, and its numbers.
local WIDTH = {L = 7, R = 3, D = 2, S = 9, G = 6, P = 3, N = 6, C = 4, H = 1}
-- Those with scopes (limiter_grant), and for each number behind the name whether the
-- greater (+) or the lesser (-) is the stricter.
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
  dayEnd, birth, epoch, brake, braked = number(state, 211), number(state, 227), number(state, 243), number(state, 259), number(state, 275)
  step, nextUsed, dayBorn, uncounted = number(state, 291), number(state, 307), number(state, 323), number(state, 339)
  tats[1], tats[2], tats[3] = number(state, 115), number(state, 131), number(state, 355)
  local eol = find(state, '\n', 1, true)
  for i = 371, eol - 16, 16 do tats[#tats + 1] = number(state, i) end
  local e2 = find(state, '\n', eol + 1, true)
  local e3 = find(state, '\n', e2 + 1, true)
  local e4 = find(state, '\n', e3 + 1, true)
  held, strictest, rest = sub(state, eol + 1, e2 - 1), sub(state, e2 + 1, e3 - 1), sub(state, e4 + 1)
  assert(#sections(held) > 0 and #sections(strictest) > 0)
  for r in string.gmatch(sub(state, e3 + 1, e4 - 1), '[^,]+') do
    assert(r == '-' or (#r % 16 == 0 and not find(r, '%D')))
    rings[#rings + 1] = r ~= '-' and r or ''
  end
  -- A line P follows once there was a probing stop. A release that knows none keeps it
  -- as one of a later format. Until the next probe it obeys, for the brake above covers
  -- that too; after that it lets calls flow until one of us asks. What it writes there
  -- counts: a later end is a brake that it was told, an earlier one a state that it lost.
  if find(rest, '^P[%d ]+\n') then
    local other, next = number(rest, 2), number(rest, 18)
    local a, b, c, d = number(rest, 34), number(rest, 50), number(rest, 66), number(rest, 82)
    if brake >= max(other, next) then
      if brake == max(other, next) then brake = other end
      probe, began, turned, pause, pauseMost = next, a, b, c, d
    end
    rest = sub(rest, find(rest, '\n', 1, true) + 1)
  end
  seen = true
end
if state and not pcall(read) then
  state, tats, rings, held, strictest, rest, seen = false, {}, {}, nil, nil, '', nil
  last, backHigh, backLow, paced, used, dayEnd, birth = 0, 0, 0, 0, 0, 0, now
  epoch, brake, braked, step, nextUsed, dayBorn, uncounted = now, 0, 0, 0, 0, now, 1
end
if looking then
  if not state then return {} end
  quota = held
end

-- What two quotas of one revision both allow.
local function strict(a, b)
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

-- Which quota is in force now.
local before = held
if not looking then
  local mine, theirs = number(quota, 1), held and number(held, 1) or -1
  if mine > theirs then
    held, strictest, epoch = quota, quota, now
  elseif mine == theirs then
    if now - epoch >= EPOCH or now < epoch then
      -- Who has been silent for a whole epoch no longer counts.
      held, strictest, epoch = now - epoch < 2 * EPOCH and strict(strictest, quota) or quota, quota, now
    else
      held, strictest = strict(held, quota), strict(strictest, quota)
    end
  end
end

local policies = sections(held)
local horizon, quiet = number(held, 18), number(held, 34)
local T, B, reach, slots, lowSlots, day = {}, {}, {}, {}, {}, nil
local index, ringIndex = {}, {}
for i, s in ipairs(policies) do
  if s.kind == 'L' then
    for n = 2, 6, 2 do T[#T + 1], B[#B + 1] = s[n], s[n + 1] end
    index[#T / 3] = i
  elseif s.kind == 'R' then
    reach[#reach + 1], slots[#slots + 1], lowSlots[#lowSlots + 1] = s[1], s[2], s[3]
    ringIndex[#reach], s.ring = i, #reach
  elseif s.kind == 'D' then
    day, s.day = s, i
  end
  s.index = i
end

-- The slots of the policies that were in force before: another T or B must not
-- make room for a second burst, and a policy that is new starts as if used up.
if seen and before ~= held then
  local tatsOf, ringOf, had = {}, {}, {}
  local l, r = 0, 0
  for _, s in ipairs(sections(before)) do
    had[s.key] = s
    if s.kind == 'L' then tatsOf[s.key] = l; l = l + 3
    elseif s.kind == 'R' then r = r + 1; ringOf[s.key] = rings[r] end
  end
  local newTats, newRings = {}, {}
  for _, s in ipairs(policies) do
    local o = had[s.key]
    if s.kind == 'L' then
      for n = 2, 6, 2 do
        local tat = o and tats[tatsOf[s.key] + n / 2]
        if not tat or (o[n] == 0 and s[n] > 0) then
          tat = max(now + quiet, brake) + max(s[n + 1] - 1, 0) * s[n]
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
  tats, rings, backHigh, backLow = newTats, newRings, 0, 0
end

-- What was lost, and what happened.
local back = seen and last - now or 0
local lost = not seen or back > 10000 or #tats ~= max(3, #T) or #rings ~= #reach or sub(state, 3, 42) ~= replid
local happened, i = {}, 1
if ARGV[7] then
  for word in string.gmatch(ARGV[7], '%S+') do happened[#happened + 1] = word end
end
while happened[i] do
  if happened[i] == 'step' and seen and birth <= happened[i + 1] + 0 then lost = true end
  i = i + 1
end
if lost and not looking then
  brake = seen and brake > last and now + brake - last or 0
  -- A probing stop lasts, as a brake does; what was sent before this doesn't end it.
  if probe > 0 then probe, began, turned = max(now, now + probe - last), now, now else turned = 0 end
  birth, epoch, braked, backHigh, backLow, paced, uncounted = now, now, 0, 0, 0, 0, 1
  tats, rings = {now, now, now}, {}
  for n = 1, #T do tats[n] = max(now + quiet, brake) + max(B[n] - 1, 0) * T[n] end
  for n = 1, #reach do rings[n] = string.rep(format('%16d', now + horizon), max(slots[n], lowSlots[n])) end
elseif back > 0 then
  now = last -- a small step back: time stands still
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
  elseif find(quota, 'D', 1, true) and not looking then
    return {-1}
  end
end

i = 1
while happened[i] do
  if happened[i] == 'backoff' then
    local d, base, sent = happened[i + 1] + 0, happened[i + 2] + 0, happened[i + 3] + 0
    if d == 0 and sent >= braked then
      -- Refused again soon after the last pause: it was too short.
      step = brake > 0 and now < brake + RAMP + step and min(2 * step, BRAKE_MOST) or base
      step = max(step, base)
      d = step
    end
    if d > 0 then
      if sent >= braked then braked = now end
      brake = max(brake, now + d)
      for n = 1, #T do tats[n] = max(tats[n], brake + max(B[n] - 1, 0) * T[n]) end
    end
  elseif happened[i] == 'open' then
    local first, most, sent = max(happened[i + 1] + 0, PROBE_LEAST), happened[i + 2] + 0, happened[i + 3] + 0
    if probe > 0 then
      -- The same incident, or the probe that failed, whose next pause is set. Who asked
      -- for longer pauses has them, counted from where the pause began.
      pauseMost = max(pauseMost, first, most)
      if first > pause then pause, probe = first, max(probe, turned + first) end
    elseif sent >= turned then -- otherwise it was sent before the last stop ended
      probe, began, turned, pause, pauseMost = now + first, now, now, first, max(first, most)
    end
  elseif happened[i] == 'close' then
    if probe > 0 and happened[i + 1] + 0 > began then
      if now >= brake + RAMP + step then step = 0 end -- what comes next repeats no brake
      probe, turned, brake, backHigh, backLow = 0, now, max(brake, now), 0, 0
      for n = 1, #T do tats[n] = max(tats[n], brake + max(B[n] - 1, 0) * T[n]) end
    end
  elseif happened[i] == 'refund' then
    local slot = happened[i + 1] + 0
    if probe > 0 and slot == turned then
      -- The probe was never sent: another one goes soon, and the pauses grow no faster for it.
      pause, probe, turned = max(PROBE_LEAST, floor(pause / 2)), max(now, slot) + PROBE_LEAST, slot - 1
    end
    if slot > birth then
      if day and slot > dayBorn and slot < dayEnd - MARGIN and used > 0 then used = used - 1 end
      for n = 1, #rings do
        -- The ring of one lane keeps the slot: two lanes may have slots of one moment.
        for p = min(slots[n], lowSlots[n]) > 0 and #rings[n] - 15 or 0, 1, -16 do
          if number(rings[n], p) == slot then
            -- For a slot yet to come another one was dropped, which may leave the reach only then.
            local ahead = slot > now and format('%16d', slot - reach[n]) or ''
            rings[n] = ahead .. sub(rings[n], 1, p - 1) .. sub(rings[n], p + 16)
            break
          end
        end
      end
    end
  elseif happened[i] == 'used' and day then
    local e, n, when, rate = happened[i + 1] + 0, happened[i + 2] + 0, happened[i + 3] + 0, happened[i + 4] + 0
    local most = tonumber(happened[i + 5]) or 0
    if uncounted == 1 then
      local known = 0
      -- Of a day before: what was called around this midnight is not known.
      if e == dayEnd then known = n else when = min(when, e - MARGIN) end
      if when > dayEnd - 90000000000 - 2 * MARGIN then -- a day has at most 25 hours
        used = max(used, known + most + floor(rate * max(0, min(now + horizon - when, UNWRITTEN)) / 1000000))
      end
      used, uncounted = max(used, known), 0
      local margin = now + horizon - dayEnd + MARGIN
      if margin > 0 and when > 0 then nextUsed = max(nextUsed, min(used, most + floor(rate * margin / 1000000))) end
    end
  end
  i = i + 1
end
if not day then uncounted = 0 end

-- After a brake the rate comes back from half to the whole.
local ramp = 1
if brake > 0 and now < brake + RAMP then ramp = max(0.5, min(1, 0.5 + 0.5 * (now - brake) / RAMP)) end
local earliest, stopped = max(now, brake, probe), sub(held, 17, 17) == '1'

if looking then
  local out = {now, birth, number(held, 1), stopped and 1 or 0, brake, floor(ramp * 1000), uncounted}
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
      local n, ring = 0, rings[s.ring]
      for p = 1, #ring, 16 do if number(ring, p) > now - s[1] then n = n + 1 end end
      out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4], out[#out + 5] = 2, s[1], s[2], s[3], n
    elseif s.kind == 'D' then
      out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4], out[#out + 5] = 3, s[1], s[2], used, dayEnd
    end
  end
  if probe > 0 then
    local n = #out
    out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = 4, max(probe, brake), began, pause, pauseMost
  end
  return out
end
