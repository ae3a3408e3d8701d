-- limiter_buckets: goes on where limiter_slots ends, whose locals are ours: calls that are
-- charged to buckets of their own, one for each value of a policy's scope, besides what
-- all calls of the source are charged to. All are taken together, or none.
--
-- Sections of the quota (ARGV[3]) for them, each with a number for its policy's name first:
--   S reach in us, units in it, units that LOW may use, grain in us, ns a unit of the pace
--     (0: not paced), units at once by the pace, units of these kept for HIGH, units that
--     the last calls before a loss of the state may have used at once
--                                                    a sliding-window log of slots and units
--   G ns a unit, units at once, units kept for HIGH, whether levels are told, us for which
--     it is remembered that it was used     a bucket
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
--           g k UNITS SLOT        so many of a slot's were not used, or if negative used
--                                 besides; SLOT 0: they were, and were given back now
--           l k UNITS SLOT        so many are left, as the answer to the call of SLOT tells
--           w k SLOT UNITS        so many of a slot's were not used, or if negative used besides
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
local TAIL = 100000   -- a call arrives within so long of its slot
local SPELL = 250000  -- of so long the slack of a bucket's calls is kept in one number
local SPELLS = 8      -- and of so many spells
local FAR = 1e15

-- The window of a bucket that is counted by what answers tell is over.
local function turn(b)
  if b.known == 1 and now >= b.till then b.known, b.over = 0, b.till end
end

-- A sliding-window log has entries of 32 digits, a moment and units, the earliest first. A
-- slot is rounded up to a multiple of the grain, which bounds the entries of a reach; an
-- entry holds its units until a reach after its moment. So in any window of a reach there
-- are as many units as the limit at most, by the slots themselves too.

-- Adds units to the log at a slot; negative: removes as many as its entry has.
local function logged(b, slot, units)
  local moment = ceil(slot / b.s[5]) * b.s[5]
  local p = #b.log - 31
  while p > 0 and number(b.log, p) > moment do p = p - 32 end
  local at, held = p + 32, 0
  if p > 0 and number(b.log, p) == moment then at, held = p, number(b.log, p + 16) end
  local left = max(0, held + units)
  local entry = left > 0 and format('%16d%16d', moment, left) or ''
  b.log, b.used = sub(b.log, 1, at - 1) .. entry .. sub(b.log, p + 32), b.used + left - held
end

-- The log of a state that was lost: all of the limit was used, the last units at once, those
-- before them by the pace.
local function relogged(b, s)
  local chunks, rest = 50, s[3] - s[9]
  for n = chunks, 1, -1 do
    local units = floor(rest * n / chunks) - floor(rest * (n - 1) / chunks)
    if units > 0 then logged(b, birth + horizon - floor((n - 1) * rest * s[6] / 1000 / chunks), units) end
  end
  logged(b, birth + horizon, s[9])
end

-- The moment at which a log is whole again by its pace, of which units were removed.
local function repaced(b)
  b.tat = 0
  for p = 1, #b.log, 32 do
    b.tat = max(b.tat, number(b.log, p) - b.s[5]) + ceil(number(b.log, p + 16) * b.s[6] / 1000)
  end
end

-- A bucket is a moment, tat, at which it is whole again: a call moves it on by its cost,
-- from the call's slot if that is later. If a call was none after all, tat moves back, but
-- no further than it would be without that call: a later one that came when the bucket was
-- whole, or nearly, began from its own slot. By how much it was not is its slack, the least
-- of which is kept for each spell of slots.
local function graze(b, slot)
  local slack = b.tat - slot
  if slack <= 0 then
    b.spells = {{slot, FAR}}
  else
    if b.top > b.spells[#b.spells][1] + SPELL then
      b.spells[#b.spells + 1] = {b.top, FAR}
      if #b.spells > SPELLS then table.remove(b.spells, 1) end
    end
    for n = #b.spells, 1, -1 do
      local spell = b.spells[n]
      if spell[1] < slot then
        spell[2] = min(spell[2], slack)
        break
      end
    end
  end
  b.top = max(b.top, slot)
end

-- By how much tat moves back if so much was not used of a slot.
local function slackSince(b, slot, back)
  for n = #b.spells, 1, -1 do
    local spell = b.spells[n]
    back = min(back, spell[2])
    if spell[1] <= slot then
      for later = n, #b.spells do b.spells[later][2] = b.spells[later][2] - back end
      return back
    end
  end
  return 0
end

-- What the buckets hold now: what they held, and what has happened to them since.
local function bucketsNow()
  local spec, mine = {}, {}
  for _, s in ipairs(policies) do spec[s.key] = s end
  for _, s in ipairs(sections(quota)) do
    if STRICTER[s.kind] then mine[#mine + 1] = spec[s.key] or s end
  end
  local load = {
    S = function(b, s, text)
      b.tat, b.used, b.log = birth + quiet, 0, ''
      if text then
        b.tat, b.used, b.log = number(text, 17), number(text, 33), sub(text, 49, -2)
      elseif b.was then
        logged(b, now + horizon, s[3])
      elseif now < birth + s[2] then
        relogged(b, s)
      end
      local p = 1
      while p < #b.log and number(b.log, p) <= now - s[2] do
        b.used, p = b.used - number(b.log, p + 16), p + 32
      end
      b.log = sub(b.log, p)
    end,
    G = function(b, s, text)
      b.tat = text and number(text, 17) or birth + quiet + ceil(s[2] * s[3] / 1000)
      if b.was then b.tat = now + ceil(s[2] * (s[3] + #b.was / 16) / 1000) end
      b.top, b.spells = text and #text > 33 and number(text, 33) or now + horizon, {}
      for p = 49, text and #text - 32 or 0, 32 do b.spells[#b.spells + 1] = {number(text, p), number(text, p + 16)} end
      if #b.spells == 0 then b.spells = {{b.top, FAR}} end
    end,
    P = function(b, s, text) b.next = text and number(text, 17) or birth + quiet + s[2] end,
    N = function(b, s, text)
      b.known, b.left, b.units, b.till, b.began, b.flying, b.probing, b.paced, b.over, b.last = 0, 0, s[2], 0, 0, 0, 0, 0, 0, 0
      b.lost, b.lostAt = 0, 0
      if not text then
        redis.call('DEL', b.calls)
        return
      end
      b.known, b.left, b.units, b.till, b.began = number(text, 17), number(text, 33), number(text, 49), number(text, 65), number(text, 81)
      b.flying, b.probing, b.paced, b.over, b.last = number(text, 97), number(text, 113), number(text, 129), number(text, 145), number(text, 161)
      b.lost, b.lostAt = number(text, 177), number(text, 193)
      -- Of whom nothing was heard, what it asked for was used.
      local gone = b.flying > 0 and redis.call('ZRANGEBYSCORE', b.calls, '-inf', format('%.0f', now)) or {}
      for _, ticket in ipairs(gone) do
        local units = string.match(ticket, '%d+$') + 0
        b.flying, b.left = max(0, b.flying - units), b.left - units
        b.lost, b.lostAt = b.lost + units, max(b.lostAt, now - s[6])
      end
      if #gone > 0 then redis.call('ZREMRANGEBYSCORE', b.calls, '-inf', format('%.0f', now)) end
    end,
    C = function(b, s)
      redis.call('ZREMRANGEBYSCORE', b.calls, '-inf', format('%.0f', now))
      b.held = redis.call('ZCARD', b.calls)
      -- Who called before the state was lost may be calling still.
      if now < birth + s[4] then b.shut = birth + s[4] end
      b.waiters, b.want, b.got, b.left = redis.call('HGETALL', b.key), {0, 0}, {0, 0}, {0, 0}
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
    if text and (#text < 33 or #text % 16 ~= 1 or find(text, '[^%d %-]') ~= #text or number(text, 1) ~= birth) then text = false end
    -- Another limit may have made another kind of it, which begins as if it were used up.
    if text and sub(text, -1) ~= s.kind then
      b.was = text
      text = false
    end
    load[s.kind](b, s, text)
    buckets[k] = b
  end

  -- What an answer tells. Every end that is told is too late, if anything: the least holds.
  -- A window begins with the answer of a call that was sent after all of which an answer
  -- came: what others used since is under way, then, and what a slow one tells is old.
  local function told(b, slot, left, till, slack)
    local near = 2 * slack + TAIL
    -- The end is told from when the answer was made: between the slot and now. It is no
    -- sooner than this, then, and so another window's if this is later than the known one's.
    local least = till - 2 * slack - max(0, now - slot)
    -- What others used that told nothing of it came after this one, unless clearly before.
    if slot > b.lostAt + TAIL then b.lost = 0 else left = max(0, left - b.lost) end
    if b.known == 1 and least > b.till + TAIL and now >= b.till - near and slot >= b.began and slot > b.last then
      b.known, b.over = 0, min(b.till, now) -- it was over a little sooner than was thought
    end
    if b.known == 1 then
      if slot < b.began then return end -- it tells of a window before
      b.left = min(b.left, left)
      if till < b.till then b.till = till elseif left <= 0 and least + slack > b.till + TAIL then b.till = till end
    elseif slot > b.last and (slot >= b.over or least > b.over + TAIL) then
      b.known, b.left, b.till, b.began = 1, left, till, slot
      b.units = max(b.units, left)
    end
  end

  local happen = {
    c = function(b, ticket)
      if redis.call('ZREM', b.calls, ticket) == 1 then b.held, b.freed = b.held - 1, true end
      return 1
    end,
    g = function(b, units, slot)
      local back = floor(units * b.s[2] / 1000)
      if back > 0 and slot ~= '0' then back = slackSince(b, slot + 0, back) end
      b.tat = b.tat - back
      return 2
    end,
    l = function(b, units, slot)
      -- Others have used of it if there is clearly less than we know of, what came since granted.
      local most = b.s[3]
      local own, told = most - (b.tat - now) * 1000 / b.s[2], min(most, units + (now - slot) * 1000 / b.s[2])
      if own > told + max(2, most / 50) then
        b.tat, b.spells = now + ceil((most - told) * b.s[2] / 1000), {{b.top + 1, FAR}} -- which has what was not sent
      end
      return 2
    end,
    w = function(b, slot, units)
      if units + 0 < 0 then
        logged(b, now, -units)
      elseif slot + 0 > birth + horizon then -- otherwise it was lost
        logged(b, slot + 0, -units)
      end
      repaced(b)
      return 2
    end,
    n = function(b, ticket, how, units, slot, left, till, slack)
      how, units, slot, left, till = how + 0, units + 0, slot + 0, left + 0, till + 0
      turn(b)
      local counted = redis.call('ZREM', b.calls, ticket) == 0
      if counted then
        how = how == 2 and 2 or 0 -- that it was used, already
      else
        b.flying = max(0, b.flying - string.match(ticket, '%d+$'))
      end
      if b.probing == slot then b.probing = 0 end
      if slot < birth + horizon then return 7 end -- what came after it is not known any more
      if how > 0 and not counted and not (how == 2 and left >= 0) then
        b.lost, b.lostAt = b.lost + units, max(b.lostAt, slot)
      end
      if how > 0 and not counted and b.known == 1 and slot < b.began and slot >= b.over - TAIL then
        b.left = b.left - units -- it may have come when the window had begun
      elseif how == 2 and left >= 0 then
        told(b, slot, left, till > 0 and till or slot + b.s[3], slack + 0)
      elseif how > 0 and b.known == 1 and slot >= b.began then
        b.left = b.left - units
      elseif how >= 2 and slot >= b.over then -- as configured, then
        b.known, b.left, b.till, b.began = 1, b.s[2] - units, slot + b.s[3] + horizon, slot
      end
      if how > 0 then b.last = max(b.last, slot) end
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
  return buckets
end
