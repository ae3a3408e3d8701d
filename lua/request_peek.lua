-- request_peek: says, before a worker queues for a permit, whether a request
-- still needs its fetch.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  version of the request; 0 if unknown: then it needs its fetch
-- ARGV[2]  lane of the request
-- ARGV[3]  version of the stored snapshot, 0 for none: it stands in for done,
--          which may have expired or been lost
--
-- Returns PROCEED, SATISFIED (a fetch begun later is stored) or SUPERSEDED (a
-- HIGH twin with a higher number is certainly in its topic).
--
-- Atomic. SATISFIED also settles: the worker that stored the snapshot may have
-- died before it did.

local version = tonumber(ARGV[1])
if version == 0 then return 'PROCEED' end
local f = redis.pcall('HMGET', KEYS[1], 'lock', 'done')
if f.err then return 'PROCEED' end -- not our hash: request_begin clears it away
local lane, number, till, state = string.match(f[1] or '', '^(%S+) (%d+) (%d+) (%S+)$')
number = tonumber(number)
local done = math.max(tonumber(f[2] or 0) or 0, tonumber(ARGV[3]))

if done >= version then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[1], 'done', string.format('%.0f', done))
    if number and number <= done then redis.call('HDEL', KEYS[1], 'lock') end
  end
  return 'SATISFIED'
end
if number and ARGV[2] == 'LOW' and lane == 'HIGH' and state == 'CONFIRMED' and number > version then
  local t = redis.call('TIME')
  if tonumber(till) > t[1] * 1000 + math.floor(t[2] / 1000) then return 'SUPERSEDED' end
end
return 'PROCEED'
