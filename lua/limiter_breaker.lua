-- limiter_breaker: the circuit breaker of a source or of a scope, with the numbers BREAKER.

-- Opens a circuit breaker because of a call sent at `sent`.
local function openBreaker(b, first, most, sent)
  if b.probe > 0 then
    -- A report of the same incident, or of a failed probe, can only lengthen the pauses. The
    -- current pause is counted from its begin.
    b.most = max(b.most, first, most)
    if first > b.pause then b.pause, b.probe = first, max(b.probe, b.turned + first) end
  elseif sent >= b.turned then -- otherwise the call was sent before the breaker closed last
    b.probe, b.opened, b.turned, b.pause, b.most = now + first, now, now, first, max(first, most)
  end
end

-- Closes a breaker if it opened before `sent`, and reports whether it did.
local function closeBreaker(b, sent)
  if b.probe == 0 or sent <= b.opened then return false end
  b.probe, b.turned = 0, now
  return true
end

-- Takes the probe of an open breaker. The pause doubles now, in case the probe fails or is lost.
local function takeProbe(b, slot)
  b.turned, b.pause = slot, min(b.most, 2 * b.pause)
  b.probe = slot + b.pause
end

-- Takes back a probe that was not sent. The next probe is granted soon, and the pause does not grow.
local function refundProbe(b, slot)
  if b.probe > 0 and b.turned == slot then
    b.pause, b.probe, b.turned = max(MIN_PROBE_PAUSE, floor(b.pause / 2)), max(now, slot) + MIN_PROBE_PAUSE, slot - 1
  end
end

-- Returns the us until a rejected caller calls again while a breaker is open, because the breaker can
-- close, or while the probe of a backoff is in flight, because the backoff can end. The time grows with
-- the age of the newest probe, because an answer becomes less likely.
local function openRetry(probed) return max(500000, floor((now - probed) / 4)) end
