-- limiter_save: the end of limiter_acquire, behind limiter_grant: who gets what, and the
-- state is written.

local scopes = (ARGV[8] or '') ~= '' and scoped()
local nHigh, returnHigh, whyHigh, nLow, returnLow, whyLow
nHigh, returnHigh, whyHigh, backHigh = grant(ARGV[1] + 0, highMost, 1, 2, backHigh, interval(1, 2))
lowMost = min(lowMost, highMost - nHigh)
nLow, returnLow, whyLow, backLow = grant(ARGV[2] + 0, lowMost, 2, 3, backLow, max(pace, interval(2, 3)))

-- Until when the short way may be taken.
local simple = #T == 3 and T[3] == 0 and #reach == 0 and #policies == (day and 2 or 1) and held == quota and strictest == quota
calm = 0
if simple and uncounted == 0 and not stopped and probe == 0 and now >= brake + RAMP and now >= birth + quiet then
  calm = epoch + EPOCH
  if day then calm = min(calm, dayEnd - MARGIN - 2 * horizon) end
end
local out = {format(LINE, seen and sub(state, 1, 2) or FORMAT, replid, calm, simple and name or OTHERS, now, tats[1], tats[2],
  used, paced, backHigh, backLow, dayEnd, birth, epoch, max(brake, probe), braked, step, nextUsed, dayBorn, uncounted)}
for n = 3, #tats do out[#out + 1] = format('%16d', tats[n]) end
local kept = {}
for n = 1, #rings do kept[n] = rings[n] ~= '' and rings[n] or '-' end
out[#out + 1] = '\n' .. held .. '\n' .. strictest .. '\n' .. table.concat(kept, ',') .. '\n'
if turned > 0 then
  out[#out + 1] = 'P' .. format('%16d%16d%16d%16d%16d%16d\n', brake, probe, began, turned, pause, pauseMost)
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
return {nHigh, nLow, now, used, unpack(runs)}
