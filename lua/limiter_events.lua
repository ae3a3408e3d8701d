-- limiter_events: continues the files of the source's kinds. It detects a loss of state, applies the events, and
-- returns the state if only that was requested.

-- Loads the policies of the whole source. If the quota has changed, the stored numbers belong to the
-- quota before.
local lost = not loaded
if loaded then
  local had = {windows = windows, logs = logs, byID = {}}
  if before ~= state.inForce then
    had.windows, had.logs = sourcePolicies(state.terms.policies)
    for _, s in ipairs(state.terms.policies) do had.byID[s.id] = s end
    state.backHigh, state.backLow = 0, 0
  end
  lost = #state.tats ~= 3 * #had.windows or #state.logs ~= #had.logs
  for _, kind in ipairs(inUse) do
    kind.load(had)
    if before ~= state.inForce then kind.replace(had) end
  end
end

-- Reads the events, and detects a loss of state.
local back = loaded and state.last - now or 0
lost = lost or back > 10000 or state.replid ~= replid
local events, unused = (ARGV[5] or '') ~= '' and cjson.decode(ARGV[5]) or {}, false
for _, e in ipairs(events) do
  if e[1] == 'unused' and not stored then unused = true end
  if e[1] == 'step' and loaded and state.birth <= e[2] then lost = true end
end
if lost and not readOnly then
  state.backoffEnd = loaded and state.backoffEnd > state.last and now + state.backoffEnd - state.last or 0
  -- After a loss of state an open breaker stays open, and a backoff continues. The success of a call
  -- sent before now can't close it.
  if breaker.probe > 0 then
    breaker.probe, breaker.opened, breaker.turned = max(now, now + breaker.probe - state.last), now, now
  else
    breaker.turned = 0
  end
  -- A backoff still ends with a probe, but a probe in flight is forgotten.
  state.probed = min(state.probed, 1)
  state.birth, state.epoch, state.backoffSet = now, now, state.probed
  state.backHigh, state.backLow = 0, 0
  if unused then state.birth, lost = UNUSED_BIRTH, false end -- there are no earlier calls to wait for
  for _, kind in ipairs(inUse) do kind.reset(unused) end
elseif back > 0 then
  now = state.last -- the clock was set back slightly: use the time of the last run
end
birth = state.birth

local reply = day and dayCount.begin()
if reply then return reply end

-- Returns the time of the next probe if the newest probe is never answered; 0: no probe is in flight.
local function leaseEnd() return state.probed > state.backoffSet and state.probed + state.step or 0 end

if #events > 0 then
  local function startWithoutBurst(from)
    if partitions then partitions.startWithoutBurst(from) end
  end
  local apply = {
    backoff = function(d, base, sent)
      if sent >= state.backoffSet then
        -- A call that was sent before the last refusal does not change `step`.
        local pauseEnd = max(state.backoffEnd, leaseEnd())
        if pauseEnd == 0 or now >= pauseEnd + RAMP + state.step then
          state.step = d > 0 and min(d, base) or base
        elseif d == 0 then
          state.step = max(state.step, base)
        end
        -- A refused probe shows that the last pause was too short, even if the upstream named that pause.
        if d == 0 then d = state.step elseif state.probed > state.backoffSet then d = max(d, min(state.step, MAX_NAMED_BACKOFF)) end
        state.backoffSet = now
      end
      if d > 0 then
        if state.probed == 0 then state.probed = max(1, state.backoffSet) end
        state.backoffEnd = max(state.backoffEnd, now + d)
        startWithoutBurst(state.backoffEnd)
      end
    end,
    resume = function(slot)
      if state.probed == 0 or slot < state.backoffSet then return end
      if now < state.backoffEnd then
        state.probed = max(1, state.backoffSet) -- a call sent earlier was refused for a longer time: the backoff goes on
      else
        state.probed, state.backoffEnd, state.backHigh, state.backLow = 0, now, 0, 0
        startWithoutBurst(now)
      end
    end,
    open = function(first, most, sent) openBreaker(breaker, max(first, MIN_PROBE_PAUSE), most, sent) end,
    close = function(sent)
      if not closeBreaker(breaker, sent) then return end
      if now >= state.backoffEnd + RAMP + state.step then state.step = 0 end -- the next refusal starts with the first pause
      state.backoffEnd, state.backHigh, state.backLow = max(state.backoffEnd, now), 0, 0
      startWithoutBurst(state.backoffEnd)
    end,
    refund = function(slot)
      if slot == state.probed then state.probed, state.step = max(1, state.backoffSet), floor(state.step / 2) end -- the probe was not sent
      refundProbe(breaker, slot)
      if slot <= birth then return end
      for _, kind in ipairs(inUse) do
        if kind.refund then kind.refund(slot) end
      end
    end,
    used = day and dayCount.restore,
  }
  for _, e in ipairs(events) do
    if apply[e[1]] then apply[e[1]](unpack(e, 2)) end
  end
end
if not day then state.uncounted = 0 end

-- After a pause and its probe the rate rises from half to full.
if state.probed > 0 then
  ramp = 0.5
elseif state.backoffEnd > 0 and now < state.backoffEnd + RAMP then
  ramp = max(0.5, min(1, 0.5 + 0.5 * (now - state.backoffEnd) / RAMP))
end
earliest = max(now, state.backoffEnd, leaseEnd(), breaker.probe)

if readOnly then
  local out = {now, birth, terms.revision, stopped and 1 or 0, max(state.backoffEnd, leaseEnd()), floor(ramp * 1000), state.uncounted}
  local function add(...)
    for n = 1, 5 do out[#out + 1] = (select(n, ...)) end
  end
  local kindOf = {partitions = partitions, windowLog = windowLog, day = dayCount}
  for _, s in ipairs(policies) do
    if kindOf[s.kind] then add(kindOf[s.kind].view(s)) end
  end
  if breaker.probe > 0 then add(4, max(breaker.probe, state.backoffEnd, leaseEnd()), breaker.opened, breaker.pause, breaker.most) end
  return out
end
if day then dayCount.limit() end
