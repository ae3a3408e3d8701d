-- The two token buckets of adr-013 §3, for comparison only.
-- KEYS: common bucket, bucket of LOW. ARGV: size of the common bucket and of LOW's
-- bucket, refill a second of the common bucket and of LOW's bucket, the caller's
-- clock in ms, 1 for HIGH or 0 for LOW.
-- Returns 1 if the call is admitted.
local now = tonumber(ARGV[5])
local function stock(key, size, refill)
  local tokens, at = redis.call('GET', key), redis.call('GET', key .. ':ts')
  local past = (now - tonumber(at or now)) / 1000
  return math.min(size, tonumber(tokens or size) + past * refill)
end
local function spend(key, tokens)
  redis.call('SET', key, tokens - 1, 'EX', 2)
  redis.call('SET', key .. ':ts', now, 'EX', 2)
end
local all = stock(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[3]))
if all < 1 then return 0 end
if ARGV[6] == '0' then
  local low = stock(KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[4]))
  if low < 1 then return 0 end
  spend(KEYS[2], low)
end
spend(KEYS[1], all)
return 1
