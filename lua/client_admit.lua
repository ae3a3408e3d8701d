-- client_admit: decides which update requests of one client can be published. Two limits apply
-- over all processes: the client's outstanding HIGH requests, and the new keys (entities
-- without a snapshot) that the client adds. The script runs after coalesce_acquire has issued
-- the numbers, because a request that another request covers is not counted.
--
-- KEYS[1]  sorted set of the source's active clients, clients:{source}
-- KEYS[2]  sorted set of the client's outstanding requests, clients:{source}:ID
-- KEYS[3]  the client's new keys, clients:{source}:ID:new
-- ARGV[1]  ID of the client
-- ARGV[2]  max: outstanding requests while no other client is active; 0: no limit
-- ARGV[3]  min: outstanding requests that every client can have
-- ARGV[4]  lease of an outstanding request in ms; afterwards the request is not counted
-- ARGV[5]  how long a client is active after its last request, in ms
-- ARGV[6]  interval in us between two new keys at the sustained rate; 0: no limit
-- ARGV[7]  burst: maximum number of new keys at once
-- ARGV[8]  and further: one request each: N (new key) or K (known key), followed by the
--          request's unique member of KEYS[2], which is its number and entity
--
-- Returns {share, outstanding, active, wait, verdict...}
--   share        how many outstanding requests the client can have; 0: no limit
--   outstanding  how many it has now
--   active       the number of active clients
--   wait         ms until one new key is admitted; 0: now
--   verdict      per request: 0 publish it, 1 too many outstanding, 2 too many new keys
--
-- Atomic. Times are read from Redis' clock. The scores of KEYS[1] are the times until which clients
-- are active; the scores of KEYS[2] are the ends of leases. KEYS[3] is the theoretical arrival time of a
-- GCRA in us. Each key expires when it has no more effect. A key of another type is replaced.
--
-- Example: max 100, min 10, 4 active clients: each can have 25 outstanding requests.
-- With 20 active clients each can have 10, so all of them together can exceed max.

local id, max, min = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lease, stays = tonumber(ARGV[4]), tonumber(ARGV[5])
local interval, burst = tonumber(ARGV[6]), tonumber(ARGV[7])
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
local now = math.floor(us / 1000)
local function text(n) return string.format('%.0f', n) end

local function expire(key)
  local ended = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', text(now))
  if type(ended) == 'table' and ended.err then redis.call('DEL', key) end
end
expire(KEYS[1])
expire(KEYS[2])
local active = redis.call('ZCARD', KEYS[1])
if not redis.call('ZSCORE', KEYS[1], id) then active = active + 1 end
local outstanding = redis.call('ZCARD', KEYS[2])
local share = math.huge
if max > 0 then share = math.max(min, math.floor(max / active)) end

local arrival = us
if interval > 0 then
  local stored = redis.pcall('GET', KEYS[3])
  if type(stored) == 'string' then arrival = math.max(us, tonumber(stored) or 0) end
end
-- After the limit was lowered or the clock was set back, a client waits no longer than the new
-- limit requires.
arrival = math.min(arrival, us + burst * interval)

local verdicts, added = {}, 0
for i = 8, #ARGV do
  local new, member = string.sub(ARGV[i], 1, 1) == 'N' and interval > 0, string.sub(ARGV[i], 2)
  local verdict = 0
  if outstanding >= share then
    verdict = 1
  elseif new and arrival + interval > us + burst * interval then
    verdict = 2
  else
    if new then
      arrival = arrival + interval
      added = added + 1
    end
    if max > 0 and redis.call('ZADD', KEYS[2], text(now + lease), member) == 1 then
      outstanding = outstanding + 1
    end
  end
  verdicts[#verdicts + 1] = verdict
end

if outstanding > 0 then
  redis.call('PEXPIRE', KEYS[2], text(lease))
  stays = math.max(stays, lease)
end
redis.call('ZADD', KEYS[1], text(now + stays), id)
redis.call('PEXPIRE', KEYS[1], text(math.max(stays, lease)))
if added > 0 then
  redis.call('SET', KEYS[3], text(arrival), 'PX', text(math.ceil((arrival - us) / 1000)))
end
local wait = math.max(0, math.ceil((arrival + interval - us - burst * interval) / 1000))
if max == 0 then share = 0 end
local reply = {share, outstanding, active, wait}
for _, verdict in ipairs(verdicts) do reply[#reply + 1] = verdict end
return reply
