-- coalesce_acquire: decides in one step whether a request for an entity is
-- covered by one already under way, and if not, issues its number and sets a
-- pending lock in its name (rules: ARCHITECTURE.md, "Coalescing").
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  HIGH or LOW
-- ARGV[2]  1 if the request is strict: its fetch must begin after it; else 0
-- ARGV[3]  floor: version of the snapshot that the caller has read, 0 for none
-- ARGV[4]  1 if the request passes a hold; else 0
-- ARGV[5]  cool-down that publishing this request starts, in ms; 0 for none.
--          A request that has one is refused while an earlier one's lasts. Until
--          coalesce_confirm it lasts no longer than the pending lock: what is lost
--          with its producer must not be refused when it is asked for again
-- ARGV[6]  life of the pending lock in ms: a little above the delivery timeout
-- ARGV[7]  how long the hash outlives its last use, in ms
-- ARGV[8]  1 if the client may publish nothing now (client_admit has just refused
--          it): then a request that is not covered is REFUSED; else 0
--
-- Returns {outcome, number, reason, until}, until in ms since 1970:
--   PUBLISHED, UPGRADED          publish a record with this number, then confirm
--                                or roll back
--   ALREADY_PROCESSING, PENDING  covered by the lock of this number; PENDING: its
--                                publish is not acknowledged yet
--   HELD, COOLING                refused, for this reason, until then
--   REFUSED                      not covered, and not published
--
-- Atomic. Writes only with PUBLISHED and UPGRADED.
--
-- The hash: lock = "LANE number until STATE" (PENDING or CONFIRMED), ver = last
-- number issued, done = last number satisfied, hold = "REASON until number",
-- cooldown = "until number until-if-confirmed", server = the one that set the
-- lock. Times are Redis' own. Whatever lies past its until counts as absent, and
-- so does what is garbled. It lives for ARGV[7] after its last use, and longer if a
-- hold or a cool-down does.
--
-- A lock that another server set counts as absent: before this one took over it
-- may have been settled, or a fetch have begun behind it, and this one never have
-- heard of it. What tells a server from what it was before a restart, and from its
-- replica, is its replication id. A hash without one, of an older release, is
-- this server's; and one that does not tell its id can't be told from others.

local lane, strict, floor = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local f = redis.pcall('HMGET', KEYS[1], 'lock', 'ver', 'done', 'hold', 'cooldown', 'server')
if f.err then -- something else lies where the hash belongs
  redis.call('DEL', KEYS[1])
  f = {}
end
local ver, done = tonumber(f[2] or 0) or 0, math.max(tonumber(f[3] or 0) or 0, floor)
local keep = tonumber(ARGV[7])

local reason, till = string.match(f[4] or '', '^(%S+) (%d+) ')
if till and tonumber(till) > now then
  if ARGV[4] ~= '1' then return {'HELD', 0, reason, tonumber(till)} end
  keep = math.max(keep, till - now)
end

-- INFO is up to a fifth of an acquire's time, so it is asked where it matters.
local server
local function id()
  if not server then
    local info = redis.pcall('INFO', 'replication')
    local at = type(info) == 'string' and string.find(info, 'master_replid:', 1, true)
    server = at and string.match(string.sub(info, at + 14, at + 29), '^%x*') or ''
  end
  return server
end

local outcome = 'PUBLISHED'
local held, number, life, state = string.match(f[1] or '', '^(%S+) (%d+) (%d+) (%S+)$')
if number then
  number = tonumber(number)
  if tonumber(life) > now and number > floor and (f[6] or id()) == id() then
    if held == 'LOW' and lane == 'HIGH' then
      outcome = 'UPGRADED'
    elseif not (strict and ver > number) then
      -- Covered. A strict request reaches this only while no fetch has begun
      -- behind the lock: had one, ver would have moved past the lock's number.
      return {state == 'PENDING' and 'PENDING' or 'ALREADY_PROCESSING', number, '', tonumber(life)}
    end
  end
end

local cooldown = tonumber(ARGV[5])
local cooling = tonumber(string.match(f[5] or '', '^%d+') or 0)
if cooling > now then
  if cooldown > 0 then return {'COOLING', 0, 'COOLDOWN', cooling} end
  keep = math.max(keep, cooling - now)
end

if ARGV[8] == '1' then return {'REFUSED', 0, '', 0} end

-- Above every number of this entity that may still be in flight or stored, also
-- when the hash is gone: then Redis' time is above the numbers it once held.
number = math.max(math.max(ver, done) + 1, now)
local text = string.format('%.0f', number)
redis.call('HSET', KEYS[1], 'ver', text, 'server', id(),
  'lock', lane .. ' ' .. text .. ' ' .. string.format('%.0f', now + ARGV[6]) .. ' PENDING')
if done > 0 then redis.call('HSET', KEYS[1], 'done', string.format('%.0f', done)) end
if cooldown > 0 then
  redis.call('HSET', KEYS[1], 'cooldown',
    string.format('%.0f %s %.0f', now + math.min(cooldown, ARGV[6]), text, now + cooldown))
  keep = math.max(keep, cooldown)
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', keep))
return {outcome, number, '', 0}
