-- coalesce_inspect: returns the state of an entity's update requests, for diagnosis.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key} (see coalesce_acquire)
--
-- Returns {lane, number, until, state, issued, reason, held until, cooled until, done}
--   lane, number, until, state  of the lock
--   issued                      last number issued
--   reason, held until          of the hold
--   cooled until                end of the cool-down
--   done                        last number satisfied
--
-- Times are in ms since 1970. Missing values are empty or 0. A value that coalesce_acquire
-- counts as missing is missing here too, for example a lock that another server set.
--
-- Atomic. It writes nothing, even if the key has another type.

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local f = redis.pcall('HMGET', KEYS[1], 'lock', 'ver', 'hold', 'cooldown', 'server', 'done')
if f.err then f = {} end

local function ours()
  if not f[5] then return true end
  local info = redis.pcall('INFO', 'replication')
  local at = type(info) == 'string' and string.find(info, 'master_replid:', 1, true)
  return f[5] == (at and string.match(string.sub(info, at + 14, at + 29), '^%x*') or '')
end

local lane, number, till, state = string.match(f[1] or '', '^(%S+) (%d+) (%d+) (%S+)$')
if not number or tonumber(till) <= now or not ours() then lane, number, till, state = '', 0, 0, '' end
local reason, held = string.match(f[3] or '', '^(%S+) (%d+) ')
if not held or tonumber(held) <= now then reason, held = '', 0 end
local cooled = tonumber(string.match(f[4] or '', '^%d+') or 0)
if cooled <= now then cooled = 0 end
return {lane, tonumber(number), tonumber(till), state, tonumber(f[2] or 0) or 0, reason, tonumber(held), cooled,
  tonumber(f[6] or 0) or 0}
