-- request_settle: records the durable end of a request: a stored snapshot or not-found result
-- (satisfied), or a dead letter (not satisfied). It runs after the database write and before
-- the Kafka offset is committed. It always publishes a message, also for repeated and outdated
-- ends, so that waiting clients read the entity again.
--
-- KEYS[1]  the entity's hash, upd:{source/facet/key}
-- ARGV[1]  number of the fetch, or the request's version if nothing was fetched
-- ARGV[2]  1 if the fetch satisfies the requests issued before it began; else 0
-- ARGV[3]  reason of the hold that this end puts on the entity; empty: none
-- ARGV[4]  length of that hold in ms
-- ARGV[5]  TTL of the hash after its last use, in ms
-- ARGV[6]  Pub/Sub channel
-- ARGV[7]  message. It is published after the hash is written. In a cluster the
--          subscribers of all nodes receive it
--
-- Returns 1 if it released the lock, 0 if the entity has no lock or a later request's lock.
--
-- Atomic. Repeating it has no effect.

local number = tonumber(ARGV[1])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local f = redis.pcall('HMGET', KEYS[1], 'lock', 'done', 'hold', 'cooldown')
if f.err then -- the key has another type
  redis.call('DEL', KEYS[1])
  f = {}
end

if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'done', string.format('%.0f', math.max(tonumber(f[2] or 0) or 0, number)))
end

local released = 0
local locked = string.match(f[1] or '', '^%S+ (%d+) ')
if locked and tonumber(locked) <= number then
  redis.call('HDEL', KEYS[1], 'lock')
  released = 1
end

local till, by = string.match(f[3] or '', '^%S+ (%d+) (%d+)$')
local heldUntil, heldBy = tonumber(till) or 0, tonumber(by) or -1
if heldBy <= number then
  heldUntil = 0
  -- The result of a later fetch takes precedence: an outdated end sets no hold.
  if ARGV[3] ~= '' and (tonumber(f[2] or 0) or 0) <= number then
    heldUntil = now + ARGV[4]
    redis.call('HSET', KEYS[1], 'hold', ARGV[3] .. ' ' .. string.format('%.0f', heldUntil) .. ' ' .. string.format('%.0f', number))
  elseif f[3] then
    redis.call('HDEL', KEYS[1], 'hold')
  end
end
local cooldown = tonumber(string.match(f[4] or '', '^%d+') or 0)
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(tonumber(ARGV[5]), heldUntil - now, cooldown - now)))
redis.call('PUBLISH', ARGV[6], ARGV[7])
return released
