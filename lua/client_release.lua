-- client_release: stops counting requests of one client that have ended, with any outcome: a
-- snapshot, a not-found result, a dead letter, a scheduled retry, a request without fetch, or a failed
-- publish.
--
-- KEYS[1]  sorted set of the source's active clients, clients:{source}
-- KEYS[2]  sorted set of the client's outstanding requests, clients:{source}:ID
-- ARGV[1]  ID of the client
-- ARGV[2]  how long a client without outstanding requests stays active, in ms
-- ARGV[3]  and further: the member of one request each (see client_admit)
--
-- Returns how many of the requests were counted before.
--
-- Atomic. Repeating it has no effect.

local removed = 0
for i = 3, #ARGV do
  local n = redis.pcall('ZREM', KEYS[2], ARGV[i])
  if type(n) == 'table' then return 0 end -- a key of another type; client_admit replaces it
  removed = removed + n
end
if removed > 0 and redis.call('ZCARD', KEYS[2]) == 0 then
  local t = redis.call('TIME')
  local till = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2]
  local known = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
  if type(known) == 'string' and tonumber(known) > till then
    redis.call('ZADD', KEYS[1], string.format('%.0f', till), ARGV[1])
  end
end
return removed
