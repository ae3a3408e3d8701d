-- limiter_save: the last file of limiter_acquire, after limiter_grant. It grants the slots,
-- writes the state and returns the reply.

local scopes = ARGV[6] and grantBuckets()
local nHigh, returnHigh, whyHigh, nLow, returnLow, whyLow
nHigh, returnHigh, whyHigh, state.backHigh = grant(ARGV[1] + 0, maxHigh, 1, state.backHigh, interval(1))
maxLow = min(maxLow, maxHigh - nHigh)
nLow, returnLow, whyLow, state.backLow = grant(ARGV[2] + 0, maxLow, 2, state.backLow, max(pace, interval(2)))

-- Sets the time until which the fast path is allowed.
local simple = #windows == 1 and windows[1].lowT == 0 and #policies == (day and 2 or 1) and state.inForce == quota and state.strictest == quota
state.last, state.fastUntil = now, 0
if simple and state.uncounted == 0 and not stopped and breaker.probe == 0 and state.probed == 0 and now >= max(state.backoffEnd + RAMP, birth + quiet) then
  state.fastUntil = day and min(state.epoch + EPOCH, state.dayEnd - MARGIN - 2 * horizon) or state.epoch + EPOCH
end
local head = table.concat({state.format .. replid .. format('%14s', process) .. encode(state, STATE), partitions and partitions.save() or '', encode(breaker, BREAKER), ''}, '\n')
if #logs == 0 and #state.logs == 0 and #head == state.head and state.inForce == before and state.strictest == hadStrictest then
  redis.call('SETRANGE', KEYS[1], 0, head) -- the other lines are unchanged
else
  local strictest = state.strictest ~= state.inForce and state.strictest or ''
  redis.call('SET', KEYS[1], head .. table.concat({state.inForce, strictest, windowLog and windowLog.save() or '', state.rest}, '\n'))
end

if scopes then
  scopes[2] = state.used
  return scopes
end
if whyHigh ~= 0 or whyLow ~= 0 then
  local n = #runs
  runs[n + 1], runs[n + 2], runs[n + 3], runs[n + 4] = returnHigh, returnLow, whyHigh, whyLow
end
return {nHigh, nLow, now, state.used, birth, unpack(runs)}

end
return fullPath()
