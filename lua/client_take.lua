-- client_take: takes tokens from the token bucket of one client, which all query services share.
--
-- KEYS[1]  the client's bucket, requests:ID
-- ARGV[1]  capacity: the tokens of a full bucket, which are also the tokens of one window
-- ARGV[2]  window in us
-- ARGV[3]  n: tokens to take; at least 1
--
-- Returns 0 if n tokens are taken. Otherwise none is taken, and the result is the time in us until
-- there are enough.
--
-- Atomic. All times are Redis times. A bucket starts full. If n is larger than the capacity, a full
-- bucket is enough, and the number of tokens is negative afterwards. The key expires when the
-- bucket is full again. A key of another type is replaced.
--
-- Example: capacity 120, window 60 s: a client can take 120 tokens at once, and then 2 a second.

local capacity, window, n = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local f = redis.pcall('HMGET', KEYS[1], 'left', 'at')
if f.err then
  redis.call('DEL', KEYS[1])
  f = {}
end
local left, at = tonumber(f[1] or ''), tonumber(f[2] or '')
if left and at then
  left = math.min(capacity, left + math.max(0, now - at) * capacity / window)
else
  left = capacity
end
local need = math.min(n, capacity)
if left < need then return math.ceil((need - left) * window / capacity) end
left = left - n
redis.call('HSET', KEYS[1], 'left', string.format('%.9f', left), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil((capacity - left) * window / capacity / 1000)))
return 0
