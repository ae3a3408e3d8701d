-- Coalescing by the rules of adr-013 §2, for comparison only.
-- KEYS: lock, version. ARGV: lane, TTL of a HIGH lock, of a LOW lock, and of the version,
-- in ms.
-- Returns {1 published | 2 upgraded | 0 covered, version}.
local held = redis.call('GET', KEYS[1])
local outcome = 1
if held then
  if not (ARGV[1] == 'HIGH' and string.sub(held, 1, 3) == 'LOW') then return {0, 0} end
  outcome = 2
end
local version = redis.call('INCR', KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. version, 'PX', ARGV[1] == 'HIGH' and ARGV[2] or ARGV[3])
return {outcome, version}
