-- coalesce_acquire: decides in one step whether an update request in flight covers a new one.
-- If not, it issues a number for the new request and sets a pending lock with that number
-- (rules: ARCHITECTURE.md, "Coalescing").
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  HIGH or LOW
-- ARGV[2]  1 if the request is strict: its fetch must begin after the request; else 0
-- ARGV[3]  floor: version of the snapshot that the caller has read; 0: none
-- ARGV[4]  1 if the request is accepted in spite of a hold; else 0
-- ARGV[5]  cool-down in ms that publishing this request starts; 0: none. A request
--          with a cool-down is refused during an earlier cool-down. Until
--          coalesce_confirm runs, the cool-down ends with the pending lock: if the
--          producer crashes, the client must be able to request again
-- ARGV[6]  TTL of the pending lock in ms, slightly above the delivery timeout
-- ARGV[7]  TTL of the hash after its last use, in ms
-- ARGV[8]  1 if client_admit has just refused the client, so that a request that is
--          not covered is REFUSED; else 0
--
-- Returns {outcome, number, reason, until}, until in ms since 1970:
--   PUBLISHED           publish a record with this number, then confirm or roll back
--   UPGRADED            like PUBLISHED; this HIGH request replaces a LOW lock
--   ALREADY_PROCESSING  covered by the confirmed lock with this number
--   PENDING             covered by the pending lock with this number: its record is not
--                       acknowledged yet
--   HELD, COOLING       refused because of a hold or a cool-down, which lasts until `until`
--   REFUSED             not covered and not published
--
-- Atomic. It writes only if the outcome is PUBLISHED or UPGRADED.
--
-- Fields of the hash:
--   lock      "LANE number until STATE"; STATE is PENDING or CONFIRMED
--   ver       last number issued
--   done      last number satisfied
--   hold      "REASON until number"
--   cooldown  "until number until-if-confirmed"
--   server    replication ID of the server that set the lock
--
-- States of the lock:
--   none ──acquire──► PENDING ──confirm──► CONFIRMED ──settle or TTL──► none
--                        └──rollback or TTL──► none
--
-- Times are read from Redis' clock. A field whose `until` has passed, or that is malformed, counts as
-- missing. The hash lives for ARGV[7] after its last use, or longer if a hold or a cool-down
-- lasts longer.
--
-- A lock that another server set counts as missing: before the failover its request may have
-- been settled, or a fetch may have begun, and this server may not have received these writes.
-- The replication ID distinguishes a server from its replicas and from itself before a restart.
-- A lock without an ID counts as set by this server. Servers that do not return an ID cannot be
-- distinguished from each other.

local lane, strict, floor = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local f = redis.pcall('HMGET', KEYS[1], 'lock', 'ver', 'done', 'hold', 'cooldown', 'server')
if f.err then -- the key has another type
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

-- INFO takes up to a fifth of the script's run time, so it is called only if the ID is needed.
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
      -- The lock covers the request. A strict request gets here only if no fetch has begun since
      -- the lock was set, because a fetch raises ver above the lock's number.
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

-- The number is above all numbers of this entity that can be in flight or stored. If the hash
-- was lost, Redis' time is above the old numbers.
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
