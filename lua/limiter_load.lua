-- limiter_load: the second file of limiter_acquire, after limiter_acquire.lua. It uses that
-- file's locals. It loads the state and determines the quota in force.

-- The full path, up to the end of limiter_save. It is a function, so that its functions are created
-- faster: for each local that a new function uses, Lua searches the locals of the surrounding function
-- that are in use by other functions.
local function fullPath()

local FORMAT, EPOCH = '02', 2500000
local MAX_BACKOFF, RAMP = 60000000, 10000000
local MAX_NAMED_BACKOFF = 10000000 -- us; longest pause after a refused probe whose refusal names a shorter time
local UNUSED_BIRTH = 1 -- us; birth of the state of a source that was never called: its quiet period is long over
local MIN_PROBE_PAUSE = 1000000 -- us; minimum pause between probes; longer than the horizon, so that one run never grants two
local function number(text, i) return sub(text, i, i + 15) + 0 end

-- Encodes named numbers for `decode`.
local function encode(of, names)
  local out = {}
  for n = 1, #names do out[n] = of[names[n]] end
  return format(string.rep('%16d', #names), unpack(out))
end

-- Returns the names of the numbers of each kind of policy. Each name has the function that returns the
-- stricter of two values.
local function numbersOfKinds()
  return {
    partitions = {window = max, highT = max, highB = min, sharedT = max, sharedB = min, lowT = max, lowB = min},
    windowLog = {reach = max, slots = min, lowSlots = min},
    day = {calls = min, reserve = max},
    unitLog = {reach = max, units = min, lowUnits = min, grain = max, paceNs = max, burst = min, highBurst = max, atOnce = max},
    leakyBucket = {unitNs = max, size = min, forHigh = max, reported = max, keepFor = max},
    minInterval = {minGap = max, maxGap = max},
    reported = {units = min, window = max, forHigh = max, paced = max, lease = max},
    concurrency = {slots = min, lowSlots = min, lease = max},
    breaker = {},
  }
end

-- Decodes a stored quota. Fails if a number is missing: another version has stored the quota.
local function decodeTerms(text)
  local terms, kinds = cjson.decode(text), numbersOfKinds()
  assert(#terms.policies > 0 and terms.revision and terms.horizon and terms.quiet and type(terms.stopped) == 'boolean')
  for _, p in ipairs(terms.policies) do
    assert(p.id)
    for name in pairs(kinds[p.kind]) do assert(type(p[name]) == 'number') end
  end
  return terms
end

-- Combines two quotas of one revision, `a` and `b`. Each number gets the stricter of its two values.
local function stricter(a, b)
  if not a or a == b then return b end
  local all, other, of, changed, kinds = cjson.decode(a), cjson.decode(b), {}, false, numbersOfKinds()
  local function set(t, name, value)
    if t[name] ~= value then t[name], changed = value, true end
  end
  for _, p in ipairs(all.policies) do of[p.id] = p end
  for _, p in ipairs(other.policies) do
    local o = of[p.id]
    if not o then
      set(all.policies, #all.policies + 1, p)
    else
      for name, pick in pairs(kinds[p.kind]) do
        if pick == max and p.kind == 'partitions' and (o[name] == 0 or p[name] == 0) then
          set(o, name, 0) -- one of the quotas has no such partition
        else
          set(o, name, pick(o[name], p[name]))
        end
      end
    end
  end
  set(all, 'stopped', all.stopped or other.stopped)
  set(all, 'horizon', min(all.horizon, other.horizon))
  set(all, 'quiet', max(all.quiet, other.quiet))
  return changed and cjson.encode(all) or a
end

-- Returns the next line of a text, which begins at the i-th character, and the begin of the line after
-- it. `guess` is a line that is returned without a copy if it is the next line.
local function nextLine(text, i, guess)
  if guess and hasLine(text, i, guess) then return guess, i + #guess + 1 end
  local eol = find(text, '\n', i, true)
  return sub(text, i, eol - 1), eol + 1
end

local function read(text)
  local s, tats, opened, logs, i = decode(text, STATE, 57), nil, nil, nil, 58 + 16 * #STATE
  assert(sub(text, i - 1, i - 1) == '\n')
  tats, i = nextLine(text, i)
  opened, i = nextLine(text, i)
  s.head = i - 1
  s.inForce, i = nextLine(text, i, quota)
  s.strictest, i = nextLine(text, i)
  logs, i = nextLine(text, i)
  s.format, s.replid, s.rest = sub(text, 1, 2), sub(text, 3, 42), sub(text, i)
  s.tats, s.breaker, s.logs = {}, decode(opened, BREAKER, 1), {}
  for n = 1, #tats, 16 do s.tats[#s.tats + 1] = number(tats, n) end
  s.terms = s.inForce == quota and cjson.decode(quota) or decodeTerms(s.inForce)
  if s.strictest == '' then s.strictest = s.inForce else decodeTerms(s.strictest) end
  for log in string.gmatch(logs, '[^,]+') do
    assert(log == '-' or (#log % 16 == 0 and not find(log, '%D')))
    s.logs[#s.logs + 1] = log ~= '-' and log or ''
  end
  return s
end

local loaded, state = pcall(read, stored)
if not loaded then
  if readOnly then return {} end
  state = {format = FORMAT, rest = '', tats = {}, logs = {}, breaker = {}}
  for _, name in ipairs(STATE) do state[name] = 0 end
  for _, name in ipairs(BREAKER) do state.breaker[name] = 0 end
  state.birth, state.epoch, state.dayBorn, state.uncounted = now, now, now, 1
end
local breaker, replid = state.breaker, replicationID(state.last)

-- Determines the quota in force, and decodes it.
local before, hadStrictest, terms = state.inForce, state.strictest, state.terms
local mine = not readOnly and (quota == before and terms or cjson.decode(quota)) -- the caller's quota
if mine then
  local theirs = terms and terms.revision or -1
  if mine.revision > theirs then
    state.inForce, state.strictest, state.epoch = quota, quota, now
  elseif mine.revision == theirs then
    if now - state.epoch >= EPOCH or now < state.epoch then
      -- Quotas that no caller has sent for a whole epoch no longer count.
      state.inForce = now - state.epoch < 2 * EPOCH and stricter(state.strictest, quota) or quota
      state.strictest, state.epoch = quota, now
    else
      state.inForce, state.strictest = stricter(before, quota), stricter(state.strictest, quota)
    end
  end
  if state.inForce ~= before then terms = state.inForce == quota and mine or cjson.decode(state.inForce) end
end

-- Returns the policies of the whole source by kind. A window has its partitions high, shared and low as
-- elements 1 to 3.
local function sourcePolicies(all)
  local windows, logs, day = {}, {}, nil
  for _, s in ipairs(all) do
    if s.kind == 'partitions' then
      s[1], s[2], s[3] = {T = s.highT, B = s.highB}, {T = s.sharedT, B = s.sharedB}, {T = s.lowT, B = s.lowB}
      windows[#windows + 1] = s
    elseif s.kind == 'windowLog' then
      logs[#logs + 1] = s
    elseif s.kind == 'day' then
      day = s
    end
  end
  return windows, logs, day
end

local policies, horizon, quiet, stopped = terms.policies, terms.horizon, terms.quiet, terms.stopped
local windows, logs, day = sourcePolicies(policies)
local numberOf = {} -- the number of each policy in the quota in force
for i, s in ipairs(policies) do numberOf[s] = i end

-- limiter_events sets these locals, and the next files use them: birth of the state, share of the full
-- rate, earliest slot.
local birth, ramp, earliest = state.birth, 1, now

-- The next files have one kind of policy each. The kinds of the whole source have these functions;
-- limiter_buckets describes the kinds of scopes. A lane is 1 (HIGH) or 2 (LOW). `had` is the stored quota:
-- its windows and logs, and all policies by ID.
--   load(had)              loads the stored numbers into the policies of `had`
--   replace(had)           continues after another quota. A new policy starts as if it were used up
--   reset(unused)          starts after a loss of state as if the policies were used up, or, with
--                          `unused`, as if there had been no call
--   wait(slot, why, lane)  returns the earliest slot at or after `slot`, and the number of the policy
--                          that determines it (`why` if that is not a policy of this kind)
--   charge(slot, lane)     takes a slot that wait has returned
--   refund(slot)           gives a slot back that was not used
--   interval(most, lane)   returns the average us between two slots, at least `most`
--   view(s)                returns five numbers of policy s for the reply
--   save()                 returns the text to store
local kinds, inUse = {}, {} -- inUse: the kinds of the quota in force
local function use(kind)
  inUse[#inUse + 1] = kinds[kind]()
  return inUse[#inUse]
end
