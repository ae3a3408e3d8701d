-- limiter_acquire of a release without circuit breaker, second part: it continues
-- before_breaker_acquire.lua, with its locals.

local FORMAT, EPOCH = '01', 2500000
local BRAKE_MOST, RAMP = 60000000, 10000000
local UNWRITTEN = 100000000
local LINE = '%s%s%16d%s%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d%16d'
local OTHERS = '----------------------------------------'
local find, huge = string.find, math.huge
local last, backHigh, backLow, paced, used, dayEnd = 0, 0, 0, 0, 0, 0
local birth, epoch, brake, braked, step, nextUsed, dayBorn, uncounted = now, now, 0, 0, 0, 0, now, 1
local tats, held, strictest, rings, rest, seen = {}, nil, nil, {}, '', nil
local looking = quota == ''
if not replid then readReplid() end
if not find(replid, '[^0]') then name = ARGV[4] .. anybody end
state = redis.call('GET', KEYS[1])

local function number(text, i) return sub(text, i, i + 15) + 0 end

local WIDTH = {L = 7, R = 3, D = 2}
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
    else
      o[1], o[2] = min(o[1], s[1]), max(o[2], s[2])
    end
  end
  local head = sub(b, 1, 16) .. max(sub(a, 17, 17), sub(b, 17, 17))
    .. format('%16d%16d', min(number(a, 18), number(b, 18)), max(number(a, 34), number(b, 34)))
  return text(head, all)
end

local before = held
if not looking then
  local mine, theirs = number(quota, 1), held and number(held, 1) or -1
  if mine > theirs then
    held, strictest, epoch = quota, quota, now
  elseif mine == theirs then
    if now - epoch >= EPOCH or now < epoch then
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
  else
    day, s.day = s, i
  end
end

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
      newRings[#newRings + 1] = o and ringOf[s.key] or string.rep(format('%16d', now + horizon), s[2])
    elseif not o then
      dayEnd, used, uncounted = 0, 0, 1
    end
  end
  for n = #newTats + 1, 3 do newTats[n] = now end
  tats, rings, backHigh, backLow = newTats, newRings, 0, 0
end

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
  birth, epoch, braked, backHigh, backLow, paced, uncounted = now, now, 0, 0, 0, 0, 1
  tats, rings = {now, now, now}, {}
  for n = 1, #T do tats[n] = max(now + quiet, brake) + max(B[n] - 1, 0) * T[n] end
  for n = 1, #reach do rings[n] = string.rep(format('%16d', now + horizon), slots[n]) end
elseif back > 0 then
  now = last
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
      step = brake > 0 and now < brake + RAMP + step and min(2 * step, BRAKE_MOST) or base
      step = max(step, base)
      d = step
    end
    if d > 0 then
      if sent >= braked then braked = now end
      brake = max(brake, now + d)
      for n = 1, #T do tats[n] = max(tats[n], brake + max(B[n] - 1, 0) * T[n]) end
    end
  elseif happened[i] == 'refund' then
    local slot = happened[i + 1] + 0
    if slot > birth then
      if day and slot > dayBorn and slot < dayEnd - MARGIN and used > 0 then used = used - 1 end
      for n = 1, #rings do
        for p = #rings[n] - 15, 1, -16 do
          if number(rings[n], p) == slot then
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
      if e == dayEnd then known = n else when = min(when, e - MARGIN) end
      if when > dayEnd - 90000000000 - 2 * MARGIN then
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

local ramp = 1
if brake > 0 and now < brake + RAMP then ramp = max(0.5, min(1, 0.5 + 0.5 * (now - brake) / RAMP)) end
local earliest, stopped = max(now, brake), sub(held, 17, 17) == '1'

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
    else
      out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4], out[#out + 5] = 3, s[1], s[2], used, dayEnd
    end
  end
  return out
end

local highMost, lowMost, pace, paceWhy = huge, huge, 0, 0
local inMargin = day and now + horizon >= dayEnd - MARGIN
if day then
  local seconds, reserve = max(1, (dayEnd + MARGIN - now) / 1000000), day[2] / 1000000
  highMost = day[1] - used
  lowMost = highMost - reserve * seconds
  if lowMost >= 1 then pace, paceWhy = ceil(1000000 * seconds / lowMost), day.day end
  if inMargin then
    highMost = min(highMost, day[1] - nextUsed)
    local left = day[1] - nextUsed - reserve * 86400
    lowMost = min(lowMost, left)
    if left >= 1 then pace = max(pace, ceil(86400000000 / left)) end
  end
end
if (ARGV[6] or '') ~= '' then
  local ceiling = number(ARGV[6], now < number(ARGV[6], 33) and 1 or 17)
  if ceiling > pace then pace, paceWhy = ceiling, -5 end
end

local taken = {}
local function slotOf(first, second)
  local slot, why = earliest, brake > now and -1 or 0
  for l = 0, #T - 3, 3 do
    local a, b = huge, huge
    local ta, tb = T[l + first], T[l + second]
    if ta > 0 then a = tats[l + first] - (B[l + first] - 1) * ta end
    if tb > 0 then b = tats[l + second] - (B[l + second] - 1) * tb end
    local n = second
    if max(a, earliest) <= max(b, earliest) then b, n = a, first end
    taken[l] = n
    if b > slot then slot, why = b, index[l / 3 + 1] end
  end
  for n = 1, #reach do
    local ring = rings[n]
    local most = max(1, floor((first == 1 and slots[n] or lowSlots[n]) * ramp))
    local s = #ring >= 16 and number(ring, #ring - 15) or 0
    if #ring >= 16 * most then s = max(s, number(ring, #ring - 16 * most + 1) + reach[n]) end
    if s > slot then slot, why = s, ringIndex[n] end
  end
  if first == 2 and pace > 0 and ceil(paced + pace) - AHEAD > slot then slot, why = ceil(paced + pace) - AHEAD, paceWhy end
  return slot, why
end

local runs, run = {}, nil
local function grant(n, most, first, second, before, interval)
  if n == 0 then return 0, 0, 0, before end
  if stopped then return 0, 1000000, -2, before end
  if uncounted == 1 then return 0, 50000, -4, before end
  local granted, slot, why = 0, 0, 0
  local limit = min(n, max(0, floor(most)))
  run = nil
  while granted < limit do
    slot, why = slotOf(first, second)
    if slot > now + horizon then break end
    for l = 0, #T - 3, 3 do
      local lane = l + taken[l]
      tats[lane] = ceil(max(tats[lane], slot) + T[lane] / ramp)
    end
    for r = 1, #reach do
      rings[r] = rings[r] .. format('%16d', slot)
      if #rings[r] > 16 * slots[r] then rings[r] = sub(rings[r], -16 * slots[r]) end
    end
    if first == 2 and pace > 0 then paced = max(ceil(paced + pace), slot) end
    if day then
      if slot >= dayEnd - MARGIN then nextUsed = nextUsed + 1 end
      used = used + 1
    end
    granted = granted + 1
    local wait = slot - now
    if run and runs[run] == 1 then
      runs[run], runs[run + 2] = 2, wait - runs[run + 1]
    elseif run and wait - runs[run + 1] == runs[run] * runs[run + 2] then
      runs[run] = runs[run] + 1
    else
      run = #runs + 1
      runs[run], runs[run + 1], runs[run + 2] = 1, wait, 0
    end
  end
  if granted == n then return granted, 0, 0, before end
  if granted == limit then
    return granted, max(1, min(1000000, dayEnd + MARGIN - now)), day.day, before
  end
  if why == 0 or now < birth + quiet or lost then why = -3 end
  local batch = max(1, min(n - granted, floor(horizon / 2 / interval)))
  local from = max(slot - horizon, before)
  if from > now + AGAIN then from, interval = now + AGAIN, 0 end
  return granted, max(1, ceil(from + (batch - 1) * interval) - now), why, ceil(from + batch * interval)
end

local function interval(first, second)
  local most = 1
  for l = 0, #T - 3, 3 do
    most = max(most, T[l + first] > 0 and T[l + first] or T[l + second])
  end
  for r = 1, #reach do most = max(most, reach[r] / (first == 1 and slots[r] or lowSlots[r])) end
  return most / ramp
end

local nHigh, returnHigh, whyHigh, nLow, returnLow, whyLow
nHigh, returnHigh, whyHigh, backHigh = grant(ARGV[1] + 0, highMost, 1, 2, backHigh, interval(1, 2))
lowMost = min(lowMost, highMost - nHigh)
nLow, returnLow, whyLow, backLow = grant(ARGV[2] + 0, lowMost, 2, 3, backLow, max(pace, interval(2, 3)))

local simple = #T == 3 and T[3] == 0 and #reach == 0 and held == quota and strictest == quota
calm = 0
if simple and uncounted == 0 and not stopped and now >= brake + RAMP and now >= birth + quiet then
  calm = epoch + EPOCH
  if day then calm = min(calm, dayEnd - MARGIN - 2 * horizon) end
end
local out = {format(LINE, seen and sub(state, 1, 2) or FORMAT, replid, calm, simple and name or OTHERS, now, tats[1], tats[2],
  used, paced, backHigh, backLow, dayEnd, birth, epoch, brake, braked, step, nextUsed, dayBorn, uncounted)}
for n = 3, #tats do out[#out + 1] = format('%16d', tats[n]) end
local kept = {}
for n = 1, #rings do kept[n] = rings[n] ~= '' and rings[n] or '-' end
out[#out + 1] = '\n' .. held .. '\n' .. strictest .. '\n' .. table.concat(kept, ',') .. '\n' .. rest
redis.call('SET', KEYS[1], table.concat(out))

if whyHigh ~= 0 or whyLow ~= 0 then
  local n = #runs
  runs[n + 1], runs[n + 2], runs[n + 3], runs[n + 4] = returnHigh, returnLow, whyHigh, whyLow
end
return {nHigh, nLow, now, used, unpack(runs)}
