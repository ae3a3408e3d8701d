-- limiter_save: the last file of limiter_acquire, after limiter_grant. It grants the slots,
-- writes the state and returns the reply.

local scopes = ARGV[7] and grantQueues()
local nHigh, returnHigh, whyHigh, nLow, returnLow, whyLow
nHigh, returnHigh, whyHigh, backHigh = grant(ARGV[1] + 0, maxHigh, 1, 2, backHigh, interval(1, 2))
maxLow = min(maxLow, maxHigh - nHigh)
nLow, returnLow, whyLow, backLow = grant(ARGV[2] + 0, maxLow, 2, 3, backLow, max(pace, interval(2, 3)))

-- Sets the time until which the fast path is allowed.
local simple = #T == 3 and T[3] == 0 and #reach == 0 and #policies == (day and 2 or 1) and inForce == quota and strictest == quota
fastUntil = 0
if simple and uncounted == 0 and not stopped and nextProbe == 0 and probed == 0 and now >= backoffEnd + RAMP and now >= birth + quiet then
  fastUntil = epoch + EPOCH
  if day then fastUntil = min(fastUntil, dayEnd - MARGIN - 2 * horizon) end
end
local out = {format(LINE, loaded and sub(state, 1, 2) or FORMAT, replid, fastUntil, simple and name or OTHERS, now, tats[1], tats[2],
  used, paced, backHigh, backLow, dayEnd, birth, epoch, max(backoffEnd, nextProbe), backoffSet, step, nextUsed, dayBorn, uncounted)}
for n = 3, #tats do out[#out + 1] = format('%16d', tats[n]) end
local kept = {}
for n = 1, #logs do kept[n] = logs[n] ~= '' and logs[n] or '-' end
out[#out + 1] = '\n' .. inForce .. '\n' .. strictest .. '\n' .. table.concat(kept, ',') .. '\n'
if probed > 0 then out[#out + 1] = 'B' .. format('%16d\n', probed) end
if pauseStart > 0 then
  out[#out + 1] = 'P' .. format('%16d%16d%16d%16d%16d%16d\n', backoffEnd, nextProbe, began, pauseStart, pause, maxPause)
end
out[#out + 1] = rest
redis.call('SET', KEYS[1], table.concat(out))

if scopes then
  scopes[2] = used
  return scopes
end
if whyHigh ~= 0 or whyLow ~= 0 then
  local n = #runs
  runs[n + 1], runs[n + 2], runs[n + 3], runs[n + 4] = returnHigh, returnLow, whyHigh, whyLow
end
return {nHigh, nLow, now, used, birth, unpack(runs)}
