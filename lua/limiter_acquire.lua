-- limiter_acquire: reserves time slots for upstream calls in the lanes of one
-- source (design and proof: limiter/doc.go). Each lane is a GCRA: slots lie an
-- interval T apart, but up to B may fall together after a pause. HIGH takes the
-- earlier slot of the lanes high and shared, LOW the earlier of shared and low.
--
-- KEYS[1]  the source's state, quota:{source}:lanes
-- ARGV[1]  slots wanted by HIGH
-- ARGV[2]  slots wanted by LOW
-- ARGV[3]  horizon: how far ahead of now a slot may lie, in us
-- ARGV[4]  quiet start: no slot for this long after the state was lost, in us
-- ARGV[5]  brake: no further slot for this long, in us; 0 for none
-- ARGV[6..11]  T in us and B of the lanes high, shared, low; T 0: no such lane
--
-- Returns {n HIGH, n LOW, return HIGH, return LOW, w1, w2, ...}: the slots
-- granted, HIGH's first, each as a wait in us from Redis' now; and for demand
-- that was refused, in how many us to ask again (0: nothing was refused). Who is
-- refused is queued in time behind those refused before, so that nobody stampedes.
--
-- Atomic: one GET and one SET. A state that is missing, garbled, from before a
-- restart or a failover, or from before Redis' clock was set back starts quiet,
-- for permits of the lost state may still be on their way.
--
-- The state is one string without expiry: format (2 digits), replication id (40
-- hex digits), then numbers of 16 digits. A later format only appends: what
-- follows the fields known here is kept as it came. A caller whose lanes are
-- slower than others' slows everyone until it has been silent for LEASE us, so
-- that while limits change the lower of two holds.

local FORMAT, HEAD, DIGITS, FIELDS, LEASE = '01', 42, 16, 14, 5000000
local LAST, HIGH_TAT, SHARED_TAT, LOW_TAT, HIGH_BACK, LOW_BACK, BRAKE, SEEN, POLICY = 1, 2, 3, 4, 5, 6, 7, 8, 8

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local horizon, quiet = tonumber(ARGV[3]), tonumber(ARGV[4])

-- Changes when a replica is promoted and when the server restarts.
local ok, info = pcall(redis.call, 'INFO', 'replication')
local replid = ok and type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
if #replid ~= 40 then replid = string.rep('0', 40) end

local state = redis.call('GET', KEYS[1])
local known, format, rest, s = HEAD + DIGITS * FIELDS, FORMAT, '', {}
if state and #state >= known and string.match(string.sub(state, 1, HEAD), '^%d%d%x+$')
    and not string.find(string.sub(state, HEAD + 1, known), '%D') then
  format, rest = string.sub(state, 1, 2), string.sub(state, known + 1)
  for i = 1, FIELDS do s[i] = tonumber(string.sub(state, HEAD + (i - 1) * DIGITS + 1, HEAD + i * DIGITS)) end
else
  state = nil
end

-- The lanes to grant from now, and those to write down for the next caller.
local T, B, heldT, heldB, slower, same = {}, {}, {}, {}, false, true
for i = 1, 3 do
  T[i], B[i] = tonumber(ARGV[4 + 2 * i]), tonumber(ARGV[5 + 2 * i])
  heldT[i], heldB[i] = state and s[POLICY + 2 * i - 1] or 0, state and s[POLICY + 2 * i] or 0
  if T[i] > 0 and heldT[i] > 0 then
    if T[i] > heldT[i] or B[i] < heldB[i] then slower = true end
    if T[i] < heldT[i] or B[i] > heldB[i] then same = false end
  end
end
if state and (slower or same) then s[SEEN] = now end
for i = 1, 3 do
  if T[i] > 0 then
    if heldT[i] > 0 and now - s[SEEN] < LEASE then
      T[i], B[i] = math.max(T[i], heldT[i]), math.min(B[i], heldB[i])
    end
    if heldT[i] > 0 then -- another T or B must not make room for a second burst
      local tat = HIGH_TAT + i - 1
      s[tat] = math.max(s[tat], s[tat] - (heldB[i] - 1) * heldT[i] + (B[i] - 1) * T[i])
    end
    heldT[i], heldB[i] = T[i], B[i]
  end
end

local back = state and s[LAST] - now or 0
if not state or back > 10000 or string.sub(state, 3, HEAD) ~= replid then
  local brake = state and now + math.max(0, s[BRAKE] - s[LAST]) or 0
  s = {0, 0, 0, 0, 0, 0, brake, now}
  for i = 1, 3 do s[HIGH_TAT + i - 1] = now + quiet + math.max(B[i] - 1, 0) * T[i] end
end
if back > 0 and back <= 10000 then now = math.max(now, s[LAST]) end -- a small step back: time stands still
s[LAST] = now
local brake = tonumber(ARGV[5])
if brake > 0 then s[BRAKE] = math.max(s[BRAKE], now + brake) end
local earliest = math.max(now, s[BRAKE])

local function nextSlot(lane)
  if T[lane] == 0 then return math.huge end
  return math.max(earliest, s[HIGH_TAT + lane - 1] - (B[lane] - 1) * T[lane])
end

local waits = {}
-- Grants up to n slots from two lanes; returns how many, and when to ask for the rest.
local function grant(n, first, second, backAt, pace)
  local granted, slot = 0, 0
  while granted < n do
    local a, b = nextSlot(first), nextSlot(second)
    local lane = a <= b and first or second
    slot = math.min(a, b)
    if slot > now + horizon then break end
    local tat = HIGH_TAT + lane - 1
    s[tat] = math.max(s[tat], earliest) + T[lane]
    granted = granted + 1
    waits[#waits + 1] = slot - now
  end
  if granted == n then return granted, 0 end
  -- Back when a batch of slots has come within the horizon, but while at least
  -- half of the reserved ones are still ahead: few calls, and no idle lane.
  local batch = math.max(1, math.min(n - granted, math.floor(horizon / 2 / pace)))
  local from = math.max(slot - horizon, s[backAt])
  s[backAt] = from + batch * pace
  return granted, math.max(1, from + (batch - 1) * pace - now)
end

local nHigh, backHigh = grant(tonumber(ARGV[1]), 1, 2, HIGH_BACK, T[1] > 0 and T[1] or T[2])
local nLow, backLow = grant(tonumber(ARGV[2]), 2, 3, LOW_BACK, T[2] > 0 and T[2] or T[3])

local out = {format, replid}
for i = 1, SEEN do out[#out + 1] = string.format('%016.0f', s[i]) end
for i = 1, 3 do
  out[#out + 1] = string.format('%016.0f', heldT[i])
  out[#out + 1] = string.format('%016.0f', heldB[i])
end
out[#out + 1] = rest
redis.call('SET', KEYS[1], table.concat(out))

return {nHigh, nLow, backHigh, backLow, unpack(waits)}
