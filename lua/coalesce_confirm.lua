-- coalesce_confirm: Kafka has acknowledged the record, so its lock may cover
-- other requests and supersede a LOW twin.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  number that coalesce_acquire issued
-- ARGV[2]  life of the confirmed lock in ms (30 s HIGH, 60 s LOW)
--
-- Returns 1 if the lock was still this number's, else 0: a worker has settled it
-- already, or a later request has replaced it. Both are as good.
--
-- Atomic.

local lock = redis.call('HGET', KEYS[1], 'lock')
local lane, number = string.match(lock or '', '^(%S+) (%d+) ')
if number ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
local till = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2]
redis.call('HSET', KEYS[1], 'lock', lane .. ' ' .. number .. ' ' .. string.format('%.0f', till) .. ' CONFIRMED')
return 1
