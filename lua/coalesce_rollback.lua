-- coalesce_rollback: the record could not be published; takes its lock away
-- again, and the cool-down it started. What the pending lock had replaced is not
-- restored: a pending lock supersedes nothing, so that record still runs.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  number that coalesce_acquire issued
--
-- Returns 1 if the lock was still exactly this number's pending one, else 0.
--
-- Atomic compare and delete.

local f = redis.call('HMGET', KEYS[1], 'lock', 'cooldown')
if string.match(f[2] or '', '^%d+ (%d+)') == ARGV[1] then redis.call('HDEL', KEYS[1], 'cooldown') end
local number, state = string.match(f[1] or '', '^%S+ (%d+) %d+ (%S+)$')
if number ~= ARGV[1] or state ~= 'PENDING' then return 0 end
redis.call('HDEL', KEYS[1], 'lock')
return 1
