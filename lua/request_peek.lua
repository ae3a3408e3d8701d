-- request_peek: checks, before a worker waits for a permit, whether a request still needs its
-- fetch.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  version of the request; 0: unknown, then the fetch is needed
-- ARGV[2]  lane of the request
-- ARGV[3]  version of the stored snapshot; 0: none. It is used if the hash's field
--          `done` has expired or was lost
--
-- Returns one of:
--   PROCEED     the fetch is needed
--   SATISFIED   the result of a fetch that began after the request is stored
--   SUPERSEDED  a HIGH record with a higher number is in its topic
--
-- Atomic. SATISFIED also settles the request, because the worker that stored the snapshot may
-- have crashed before settling it.

local version = tonumber(ARGV[1])
if version == 0 then return 'PROCEED' end
local f = redis.pcall('HMGET', KEYS[1], 'lock', 'done')
if f.err then return 'PROCEED' end -- another type; request_begin deletes the key
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
