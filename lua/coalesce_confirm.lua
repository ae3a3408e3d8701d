-- coalesce_confirm: confirms a request's lock after Kafka has acknowledged its record. From now
-- on the lock covers other requests with the outcome ALREADY_PROCESSING and can supersede a LOW
-- record, and the request's cool-down has its full length.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  number that coalesce_acquire issued
-- ARGV[2]  TTL of the confirmed lock in ms (30 s HIGH, 60 s LOW)
--
-- Returns 1 if the lock still has this number. Returns 0 if a worker has settled it already or
-- a later request has replaced it; both are normal.
--
-- Atomic. Repeating it has no effect.

local f = redis.call('HMGET', KEYS[1], 'lock', 'cooldown')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
-- The cool-down is confirmed even if a worker has settled the request already, and its lock is
-- gone.
local starter, whole = string.match(f[2] or '', '^%d+ (%d+) (%d+)$')
if starter == ARGV[1] then
  redis.call('HSET', KEYS[1], 'cooldown', whole .. ' ' .. starter .. ' ' .. whole)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), whole - now)))
end
local lane, number = string.match(f[1] or '', '^(%S+) (%d+) ')
if number ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'lock', lane .. ' ' .. number .. ' ' .. string.format('%.0f', now + ARGV[2]) .. ' CONFIRMED')
return 1
