-- coalesce_rollback: removes the pending lock, and the cool-down, of a record that could not be
-- published. If the pending lock had replaced the lock of a LOW record, that lock is not
-- restored. The LOW record is processed nevertheless, because a pending lock supersedes nothing.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  number that coalesce_acquire issued
--
-- Returns 1 if the lock was pending with exactly this number, else 0.
--
-- Atomic compare-and-delete.

local f = redis.call('HMGET', KEYS[1], 'lock', 'cooldown')
if string.match(f[2] or '', '^%d+ (%d+)') == ARGV[1] then redis.call('HDEL', KEYS[1], 'cooldown') end
local number, state = string.match(f[1] or '', '^%S+ (%d+) %d+ (%S+)$')
if number ~= ARGV[1] or state ~= 'PENDING' then return 0 end
redis.call('HDEL', KEYS[1], 'lock')
return 1
