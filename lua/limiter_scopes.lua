-- limiter_scopes: goes on where limiter_slots ends, whose locals are ours: calls that are
-- charged to buckets of their own, one for each value of a policy's scope, besides what
-- all calls of the source are charged to. All are taken together, or none.
--
-- Sections of the quota (ARGV[3]) for them, each with a number for its policy's name first:
--   W reach, units in it, units that LOW may use     an exact ring of the last slots
--   G ns a unit, units at once, units kept for HIGH, whether levels are told     a bucket
--   P least, most                                    us between two slots
--   N units, window in us, units kept for HIGH, whether LOW is paced, lease in us
--                                                    counted by what the answers tell
--   C places, places for LOW, lease in us            calls under way at once
--   H                                                what is halted alone
-- KEYS[2k], KEYS[2k+1]  the state of bucket k: quota:{source}:b:<scope>, and of its calls
--           under way, which have the first key's name and ":calls"
-- ARGV[8]   for each bucket its section's place among those above
-- ARGV[9]   what has happened to them, words apart by blanks; k is a bucket:
--           c k TICKET            a call has ended
--           g k UNITS             so many were not used, or if negative used besides
--           l k UNITS SLOT        so many are left, as the answer to the call of SLOT tells
--           w k SLOT              a slot of which nothing was sent
--           n k TICKET HOW UNITS SLOT LEFT END SLACK   a call has ended: HOW 0 nothing was
--                                 sent; 1 what came of it is not known; 2 its answer tells
--                                 what is LEFT (-1: not that) until END (0: not that; up to
--                                 SLACK us too late); 3 it was answered, and tells nothing.
--                                 UNITS were used
--           h k FIRST MOST SENT   halt: but for one call that probes after FIRST us, and
--                                 after pauses that double up to MOST; nothing if a call
--                                 was lifted or halted since SENT
--           u k SLOT              nothing was sent of a probe's slot
--           o k SENT              it is well again, as a call sent then shows (0: in any case)
-- ARGV[10]  for each class of calls: lane (1 HIGH, 2 LOW), calls, alternatives, and for each
--           of these: buckets, and for each of these: k and the units of a call
-- ARGV[11]  what tickets begin with; they are numbered from 1, in the order of the grants
-- ARGV[12]  the process, and ARGV[13] the channel on which one is told that it may have a place
--
-- Returns {now, day's calls, -6 in a probing stop or 0; for each class: calls granted, in how
-- many us to ask for the others (0: there are none), the section that refused them (or as
-- in limiter_acquire), and for each granted: the wait in us, which alternative, and whether
-- it probes what is halted; for each bucket: units left, units under way, and the moment
-- when there are more (0: not known)}.
--
-- A bucket begins with the birth of the source's state: it was lost when that was.

local CALM = 50000    -- a call that is under way may end
local PLACE = 300000  -- and who waits for its place says that he is still there
local LIVE = 1000000  -- or stands in nobody's way any longer
local NEAR = 20000    -- a place is not held empty for longer before its slot

local function scoped()
  local spec, mine = {}, {}
  for _, s in ipairs(policies) do spec[s.key] = s end
  for _, s in ipairs(sections(quota)) do
    if STRICTER[s.kind] then mine[#mine + 1] = spec[s.key] or s end
  end
  local process, wakes = ARGV[12], ARGV[13]

  local load = {
    W = function(b, s, text)
      b.ring = text and sub(text, 17) or ''
      if not text and now < birth + s[2] then b.ring = string.rep(format('%16d', birth + horizon), s[3]) end
    end,
    G = function(b, s, text)
      b.tat = text and number(text, 17) or birth + quiet + ceil(s[2] * s[3] / 1000)
    end,
    P = function(b, _, text) b.next = text and number(text, 17) or birth + quiet end,
    N = function(b, s, text)
      b.known, b.left, b.units, b.till, b.began, b.flying, b.probing, b.paced, b.over = 0, 0, s[2], 0, 0, 0, 0, 0, 0
      if not text then
        redis.call('DEL', b.calls)
        return
      end
      b.known, b.left, b.units, b.till, b.began = number(text, 17), number(text, 33), number(text, 49), number(text, 65), number(text, 81)
      b.flying, b.probing, b.paced, b.over = number(text, 97), number(text, 113), number(text, 129), number(text, 145)
      -- Of whom nothing was heard, what it asked for was used.
      for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', b.calls, '-inf', format('%.0f', now))) do
        local units = string.match(ticket, '%d+$') + 0
        b.flying, b.left = max(0, b.flying - units), b.left - units
      end
      redis.call('ZREMRANGEBYSCORE', b.calls, '-inf', format('%.0f', now))
    end,
    C = function(b, s)
      redis.call('ZREMRANGEBYSCORE', b.calls, '-inf', format('%.0f', now))
      b.held = redis.call('ZCARD', b.calls)
      -- Who called before the state was lost may be calling still.
      if now < birth + s[4] then b.shut = birth + s[4] end
      b.waiters, b.asks, b.left, b.got = redis.call('HGETALL', b.key), {false, false}, {0, 0}, {0, 0}
    end,
    H = function(b, _, text)
      b.probe, b.began, b.turned, b.pause, b.most = 0, 0, 0, 0, 0
      if text then b.probe, b.began, b.turned, b.pause, b.most = number(text, 17), number(text, 33), number(text, 49), number(text, 65), number(text, 81) end
    end,
  }

  local buckets = {}
  for word in string.gmatch(ARGV[8], '%S+') do
    local k = #buckets + 1
    local s = mine[word + 0]
    local b = {s = s, key = KEYS[2 * k], calls = KEYS[2 * k + 1]}
    local text = s.kind ~= 'C' and redis.call('GET', b.key)
    if text and (#text < 32 or #text % 16 ~= 0 or find(text, '[^%d %-]') or number(text, 1) ~= birth) then text = false end
    load[s.kind](b, s, text)
    buckets[k] = b
  end

  -- The window of a bucket that is counted by what answers tell is over.
  local function turn(b)
    if b.known == 1 and now >= b.till then b.known, b.over = 0, b.till end
  end

  -- What an answer tells. Every end that is told is too late, if anything: the least holds.
  local function told(b, slot, left, till, slack)
    local near = 2 * slack + 100000
    if b.known == 1 and till > b.till + near and now >= b.till - near and slot >= b.began then
      b.known, b.over = 0, min(b.till, now) -- it was over a little sooner than was thought
    end
    if b.known == 1 then
      if slot < b.began then return end -- it tells of a window before
      b.left = min(b.left, left)
      if till < b.till then b.till = till elseif left <= 0 and till > b.till + near then b.till = till end
    elseif slot >= b.over or till > b.over + near then
      b.known, b.left, b.till, b.began = 1, left, till, slot
      b.units = max(b.units, left)
    end
  end

  local happen = {
    c = function(b, ticket)
      if redis.call('ZREM', b.calls, ticket) == 1 then b.held, b.freed = b.held - 1, true end
      return 1
    end,
    g = function(b, units)
      b.tat = b.tat - floor(units * b.s[2] / 1000)
      return 1
    end,
    l = function(b, units, slot)
      -- Others have used of it if there is clearly less than we know of, what came since granted.
      local most = b.s[3]
      local own, told = most - (b.tat - now) * 1000 / b.s[2], min(most, units + (now - slot) * 1000 / b.s[2])
      if own > told + max(2, most / 50) then b.tat = now + ceil((most - told) * b.s[2] / 1000) end
      return 2
    end,
    w = function(b, slot)
      slot = format('%16d', slot)
      for p = #b.ring - 15, 1, -16 do
        if sub(b.ring, p, p + 15) == slot then
          b.ring = sub(b.ring, 1, p - 1) .. sub(b.ring, p + 16)
          break
        end
      end
      return 1
    end,
    n = function(b, ticket, how, units, slot, left, till, slack)
      how, units, slot, left, till = how + 0, units + 0, slot + 0, left + 0, till + 0
      turn(b)
      if redis.call('ZREM', b.calls, ticket) == 1 then
        b.flying = max(0, b.flying - string.match(ticket, '%d+$'))
      else
        how = how == 2 and 2 or 0 -- that it was used is counted
      end
      if b.probing == slot then b.probing = 0 end
      if how == 2 and left >= 0 then
        told(b, slot, left, till > 0 and till or slot + b.s[3], slack + 0)
      elseif how > 0 and b.known == 1 and slot >= b.began then
        b.left = b.left - units
      elseif how >= 2 and slot >= b.over then -- as configured, then
        b.known, b.left, b.till, b.began = 1, b.s[2] - units, slot + b.s[3] + horizon, slot
      end
      return 7
    end,
    h = function(b, first, most, sent)
      first, most, sent = first + 0, most + 0, sent + 0
      if b.probe > 0 then
        b.most = max(b.most, first, most)
        if first > b.pause then b.pause, b.probe = first, max(b.probe, b.turned + first) end
      elseif sent >= b.turned then
        b.probe, b.began, b.turned, b.pause, b.most = now + first, now, now, first, max(first, most)
      end
      return 3
    end,
    u = function(b, slot)
      if b.probe > 0 and b.turned == slot + 0 then
        b.pause, b.probe, b.turned = max(PROBE_LEAST, floor(b.pause / 2)), max(now, b.turned) + PROBE_LEAST, b.turned - 1
      end
      return 1
    end,
    o = function(b, sent)
      if b.probe > 0 and (sent == '0' or sent + 0 > b.began) then b.probe, b.turned = 0, now end
      return 1
    end,
  }
  local words = {}
  for word in string.gmatch(ARGV[9], '%S+') do words[#words + 1] = word end
  local i = 1
  while words[i] do
    i = i + 2 + happen[words[i]](buckets[words[i + 1] + 0], unpack(words, i + 2, i + 8))
  end

  -- The earliest slot by a bucket, from at on (huge: that is not known), and which part of
  -- it is left.
  local wait = {
    W = function(b, s, units, low)
      local most, n = low and s[4] or s[3], #b.ring / 16
      if units > most then return huge, 0 end
      local p = n - (most - units)
      if p < 1 then return 0, (most - n) / most end
      return number(b.ring, 16 * p - 15) + s[2], 0
    end,
    G = function(b, s, units, low)
      local kept = low and s[4] or 0
      return b.tat + ceil((units - s[3] + kept) * s[2] / 1000), 1 - (b.tat - now) * 1000 / (s[2] * s[3])
    end,
    P = function(b) return b.next, 1 end,
    N = function(b, s, units, low, at)
      turn(b)
      if b.known == 0 then
        if b.probing > 0 and now < b.probing + s[6] then return huge, 0 end
        return birth + quiet, 0
      end
      if at >= b.till then return huge, 0 end
      local left = b.left - (low and s[4] or 0)
      if left < units then return b.till, 0 end
      if left - b.flying < units then return huge, 0 end
      local slot = 0
      if low and s[5] == 1 then slot = b.paced + (b.till - now) * units / (left - b.flying) - AHEAD end
      return slot, (b.left - b.flying) / max(1, b.units)
    end,
    C = function(b, s, _, low)
      local free = (low and s[3] or s[2]) - b.held - b.ahead[low and 2 or 1]
      return free >= 1 and (b.shut or 0) or huge, free / s[2]
    end,
    H = function(b) return b.probe, b.probe > 0 and 0 or 1 end,
  }

  local tickets = 0
  local charge = {
    W = function(b, s, units, slot)
      b.ring = sub(b.ring .. string.rep(format('%16d', slot), units), -16 * s[3])
    end,
    G = function(b, s, units, slot) b.tat = max(b.tat, slot) + ceil(units * s[2] / 1000 / ramp) end,
    -- By the clock's last digits, for chance begins anew with every run of a script.
    P = function(b, s, _, slot) b.next = slot + s[2] + floor((s[3] - s[2]) * ((slot * 7919) % 9973) / 9973) end,
    N = function(b, s, units, slot, low)
      if low and s[5] == 1 and b.known == 1 then
        b.paced = max(b.paced + (b.till - now) * units / max(1, b.left - s[4] - b.flying), slot)
      end
      b.flying = b.flying + units
      redis.call('ZADD', b.calls, format('%.0f', slot + s[6]), ARGV[11] .. tickets .. ':' .. units)
      if b.known == 0 then b.probing = slot end
    end,
    C = function(b, s, units, slot, low)
      b.held = b.held + 1
      b.got[low and 2 or 1] = b.got[low and 2 or 1] + 1
      redis.call('ZADD', b.calls, format('%.0f', slot + s[4]), ARGV[11] .. tickets .. ':' .. units)
    end,
    H = function(b, _, _, slot)
      if b.probe > 0 then b.turned, b.pause, b.probe = slot, min(b.most, 2 * b.pause), slot + min(b.most, 2 * b.pause) end
    end,
  }

  -- The classes, and who of all processes stands in front of us for a place.
  local classes = {}
  words, i = {}, 0
  for word in string.gmatch(ARGV[10], '%S+') do words[#words + 1] = word + 0 end
  local function nextWord() i = i + 1; return words[i] end
  while words[i + 1] do
    local c = {lane = nextWord(), n = nextWord(), ways = {}, ahead = horizon}
    for w = 1, nextWord() do
      local way = {}
      for x = 1, nextWord() do
        local b = buckets[nextWord()]
        way[x] = {b = b, units = nextWord()}
        if b.s.kind == 'C' then b.asks[c.lane], c.ahead = true, NEAR end
      end
      c.ways[w] = way
    end
    classes[#classes + 1] = c
  end
  for _, b in ipairs(buckets) do
    if b.s.kind == 'C' then
      b.since, b.ahead, b.first = {now, now}, {0, 0}, nil
      local others, earliestOther = {}, huge
      for n = 1, #b.waiters, 2 do
        local who, lane, since, count, seen = b.waiters[n], string.match(b.waiters[n + 1], '^(%d) (%d+) (%d+) (%d+)$')
        if not lane or seen + 0 < now - LIVE then
          redis.call('HDEL', b.key, who)
        elseif who == process .. ' ' .. lane then
          b.since[lane + 0] = since + 0
        else
          others[#others + 1] = {who, lane + 0, since + 0, count + 0}
        end
      end
      for _, o in ipairs(others) do
        for lane = 1, 2 do
          if o[2] < lane or (o[2] == lane and o[3] < b.since[lane]) then b.ahead[lane] = b.ahead[lane] + min(o[4], b.s[2]) end
        end
        local turns = o[3] + (o[2] - 1) * 1e15
        if turns < earliestOther then b.first, earliestOther = string.match(o[1], '^(.*) %d$'), turns end
      end
    end
  end

  local out = {now, 0, probe > 0 and -6 or 0}
  for _, c in ipairs(classes) do
    local low, first, second = c.lane == 2, c.lane, c.lane + 1
    local granted, again, why, at, full = 0, 0, 0, #out + 1, {}
    out[at], out[at + 1], out[at + 2] = 0, 0, 0
    while granted < c.n do
      if stopped then again, why = 1000000, -2; break end
      if uncounted == 1 then again, why = CALM, -4; break end
      if highMost < 1 or (low and lowMost < 1) then
        again, why = max(1, min(1000000, dayEnd + MARGIN - now)), day.day
        break
      end
      local base, baseWhy = slotOf(first, second)
      base = max(base, birth + quiet)
      local slot, part, way, halted
      local hint = AGAIN
      why, full = baseWhy, {}
      for w, all in ipairs(c.ways) do
        local s, p, because, probes = base, 1, baseWhy, 0
        for _, x in ipairs(all) do
          local t, left = wait[x.b.s.kind](x.b, x.b.s, x.units, low, s)
          if t > s then s, because = t, x.b.s.index or 0 end
          if t == huge then
            hint = min(hint, x.b.s.kind == 'C' and PLACE or CALM)
            if x.b.s.kind == 'C' then full[x.b] = true end
          end
          if x.b.s.kind == 'H' and x.b.probe > 0 then probes, hint = 1, min(hint, LIFTED) end
          p = min(p, left)
        end
        if not slot or s < slot or (s == slot and p > part) then
          slot, part, way, why, halted = s, p, w, because, probes
        end
      end
      if slot > now + c.ahead then
        -- It waits for a place where nothing else has it wait for longer.
        if slot == huge then
          for b in pairs(full) do b.left[c.lane] = b.left[c.lane] + c.n - granted end
        end
        again = slot == huge and hint or min(hint, max(1000, slot - now - floor(c.ahead / 2)))
        if probe > 0 then
          why = -6
          if brake <= now then again = min(again, LIFTED) end
        end
        break
      end
      slot, tickets = ceil(slot), tickets + 1
      take(slot, first)
      for _, x in ipairs(c.ways[way]) do charge[x.b.s.kind](x.b, x.b.s, x.units, slot, low) end
      granted, highMost = granted + 1, highMost - 1
      if low then lowMost = lowMost - 1 end
      local n = #out
      out[n + 1], out[n + 2], out[n + 3] = slot - now, way, halted
    end
    if now < birth + quiet or lost then why = -3 end
    out[at], out[at + 1] = granted, ceil(again)
    if granted < c.n then out[at + 2] = why end
  end

  local function keep(b, life, ...)
    local text = {format('%16d', birth)}
    for n = 1, select('#', ...) do text[n + 1] = format('%16d', (select(n, ...))) end
    redis.call('SET', b.key, table.concat(text), 'PX', format('%.0f', max(1000, ceil(life / 1000))))
  end
  local save = {
    W = function(b, s)
      redis.call('SET', b.key, format('%16d', birth) .. (b.ring ~= '' and b.ring or format('%16d', 0)), 'PX', format('%.0f', ceil((s[2] + horizon) / 1000) + 1000))
      local p = 1
      while p < #b.ring and number(b.ring, p) <= now - s[2] do p = p + 16 end
      return s[3] - (#b.ring + 1 - p) / 16, 0, p < #b.ring and number(b.ring, p) + s[2] or 0
    end,
    G = function(b, s)
      keep(b, max(0, b.tat - now) + 1000000, b.tat)
      return min(s[3], floor(s[3] - (b.tat - now) * 1000 / s[2])), 0, 0
    end,
    P = function(b)
      keep(b, max(0, b.next - now) + 1000000, b.next)
      return now >= b.next and 1 or 0, 0, b.next
    end,
    N = function(b, s)
      -- For as long as something of it may be under way or is to be told.
      keep(b, max(0, b.till - now, b.paced - now) + s[6] + 60000000, b.known, b.left, b.units, b.till, b.began, b.flying, b.probing, b.paced, b.over)
      redis.call('PEXPIRE', b.calls, format('%.0f', ceil(2 * s[6] / 1000) + 60000))
      return b.known == 1 and max(0, b.left - b.flying) or -1, b.flying, b.known == 1 and b.till or 0
    end,
    C = function(b, s)
      for lane = 1, 2 do
        if b.left[lane] > 0 then
          -- Who was served stands behind the others with what is left of it.
          local since = b.got[lane] > 0 and now or b.since[lane]
          redis.call('HSET', b.key, process .. ' ' .. lane, format('%d %.0f %d %.0f', lane, since, b.left[lane], now))
          redis.call('PEXPIRE', b.key, 10000)
        elseif b.asks[lane] then
          redis.call('HDEL', b.key, process .. ' ' .. lane)
        end
      end
      redis.call('PEXPIRE', b.calls, format('%.0f', ceil(2 * s[4] / 1000)))
      if b.freed and b.held < s[2] and b.first then redis.call('PUBLISH', wakes, b.first) end
      return s[2] - b.held, b.held, b.shut or 0
    end,
    H = function(b)
      if b.turned > 0 then keep(b, max(0, b.probe - now) + 10 * b.most + 60000000, b.probe, b.began, b.turned, b.pause, b.most) end
      return b.probe > 0 and 0 or 1, 0, b.probe
    end,
  }
  for _, b in ipairs(buckets) do
    local n = #out
    out[n + 1], out[n + 2], out[n + 3] = save[b.s.kind](b, b.s)
  end
  for n = 1, #out do out[n] = ceil(out[n]) end
  return out
end
