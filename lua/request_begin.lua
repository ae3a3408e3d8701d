-- request_begin: checks once more, directly before the call is sent, whether a request needs
-- its fetch. If so it issues the fetch's own number. Two fetches of an entity never have the
-- same number. Numbers rise in the order in which calls start, so the fetch with the higher
-- number has the newer content.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  version of the request; 0: unknown, then the fetch is needed
-- ARGV[2]  lane of the request
-- ARGV[3]  version of the stored snapshot; 0: none
-- ARGV[4]  TTL of the hash after its last use, in ms
--
-- Returns {verdict, number}: PROCEED with the fetch's number, or SATISFIED or SUPERSEDED with 0
-- (see request_peek).
--
-- Atomic.

local version = tonumber(ARGV[1])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local f = redis.pcall('HMGET', KEYS[1], 'lock', 'ver', 'done', 'hold', 'cooldown')
if f.err then -- the key has another type
  redis.call('DEL', KEYS[1])
  f = {}
end
local lane, number, till, state = string.match(f[1] or '', '^(%S+) (%d+) (%d+) (%S+)$')
number = tonumber(number)
local done = math.max(tonumber(f[3] or 0) or 0, tonumber(ARGV[3]))

if version > 0 then
  if done >= version then
    if number and number <= done then redis.call('HDEL', KEYS[1], 'lock') end
    return {'SATISFIED', 0}
  end
  if number and ARGV[2] == 'LOW' and lane == 'HIGH' and state == 'CONFIRMED' and number > version and tonumber(till) > now then
    return {'SUPERSEDED', 0}
  end
end

-- A version far ahead of the clock is malformed. It must not raise the entity's numbers.
version = math.min(version, now + 86400000)
local own = math.max(math.max(tonumber(f[2] or 0) or 0, done, version) + 1, now)
local hold, cooldown = string.match(f[4] or '', '^%S+ (%d+) '), string.match(f[5] or '', '^%d+')
local keep = math.max(tonumber(ARGV[4]), (tonumber(hold) or 0) - now, (tonumber(cooldown) or 0) - now)
redis.call('HSET', KEYS[1], 'ver', string.format('%.0f', own))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', keep))
return {'PROCEED', own}
