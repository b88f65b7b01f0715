-- One call at the quotas of one subject: decided by all of them, or nothing is used.
--
-- KEYS  1 what is kept of the subject
-- ARGV  1 what to do:  c  check: use the units if all quotas have them now
--                      p  peek: tell whether a check would be admitted
--                      b  book: use the units at the first moment at which all quotas have them
--                      r  refund: give units back
--                      d  debit: use the units, also where there are none
--                      x  reset: forget what was used
--                      u  unbook: what a booking left becomes again what it found
--       2 units
--       3 book: how far the moment may be away, in microseconds; unbook: what it found, empty for nothing
--       4 unbook: what it left; else for each quota five: id, method, 1 for a shadow, which refuses nothing, scale, capacity
--
-- Returns {status, microseconds to a booked turn}, and for each quota the units that remain, the microseconds until nothing counts as
-- used, and those until the call fits where it did not (0 where it did, -1 for never); where a turn is booked, then also what that
-- found and what it left.
--
-- A call that is not admitted writes nothing, unless the key has no TTL or the clock was set back.

local DENIED = 0
local ADMITTED = 1
local INCOMPATIBLE = 2

local key, op, cost = KEYS[1], ARGV[1], tonumber(ARGV[2])
local us = tonumber(now())
local value = redis.call("GET", key)

if op == "u" then
  if value == ARGV[4] then
    local before = state_read(ARGV[3] ~= "" and ARGV[3], us)
    state_keep(key, before, ARGV[3], us)
  end
  return {ADMITTED, 0}
end

local state = state_read(value, us)
if not state then
  return {INCOMPATIBLE, 0}
end
local stepped = state_set_back(state, us)
if op == "x" then
  state = state_read(false, us)
end

-- The quotas of this call as they stand, in the smaller of the scale that is kept and their own; and the first moment at which all that
-- refuse have the units.
local turns, mine, ready = {}, {}, us
for from = 4, #ARGV, 5 do
  local turn = {
    id = ARGV[from],
    letter = ARGV[from + 1],
    method = METHODS[ARGV[from + 1]],
    shadow = ARGV[from + 2] == "1",
    scale = tonumber(ARGV[from + 3]),
    capacity = tonumber(ARGV[from + 4]),
  }
  for _, quota in ipairs(state.quotas) do
    if quota.id == turn.id and quota.letter == turn.letter then
      -- A copy: what is written for a call that is not admitted is what was there.
      turn.kept = {}
      for name, field in pairs(quota.kept) do
        turn.kept[name] = field
      end
    end
  end
  turn.kept = turn.kept or turn.method.new(us, turn.scale)
  if turn.scale < turn.kept.scale then
    -- What is booked can't come back before it was used.
    turn.method.rescale(turn.kept, math.max(state.at, state.booked), turn.scale)
  end
  if cost <= turn.capacity then
    turn.earliest = math.max(turn.method.earliest(turn.kept, us, turn.capacity, cost), state.booked)
  end
  if not turn.shadow then
    ready = math.max(ready, turn.earliest or FAR_US)
  end
  mine[turn.id] = true
  turns[#turns + 1] = turn
end

-- Of what is booked nothing is overtaken.
local pending = state.booked > us
local used_at = math.max(ready, state.booked)
local booked = state.booked
local asks = op == "c" or op == "p" or op == "b"
local admitted = not asks or ready == us
local writes = false
if op == "b" then
  admitted = ready - us <= tonumber(ARGV[3])
end
if op == "c" or op == "b" then
  if admitted then
    for _, turn in ipairs(turns) do
      turn.used = turn.earliest and turn.earliest <= used_at
      if turn.used then
        turn.method.take(turn.kept, used_at, cost)
      end
    end
    booked, writes = used_at, true
  end
elseif op == "r" then
  if value and not pending then
    for _, turn in ipairs(turns) do
      turn.method.refund(turn.kept, us, cost)
    end
    writes = true
  end
elseif op == "d" then
  for _, turn in ipairs(turns) do
    turn.method.debit(turn.kept, math.max(us, state.booked), turn.capacity, cost)
  end
  writes = true
end

local written
if writes then
  local quotas = {}
  for _, turn in ipairs(turns) do
    turn.method.rescale(turn.kept, math.max(us, booked), turn.scale)
    quotas[#quotas + 1] = turn
  end
  -- Those that only others have are theirs to forget.
  for _, quota in ipairs(state.quotas) do
    if not mine[quota.id] and quota.method.ends(quota.kept) > us then
      quotas[#quotas + 1] = quota
    end
  end
  local after = {at = us, booked = booked, quotas = quotas}
  written = state_write(after)
  state_keep(key, after, written, us)
elseif op == "x" then
  redis.call("DEL", key)
elseif value and (stepped or redis.call("PTTL", key) == -1) then
  state_keep(key, state, state_write(state), us)
end

local wait = writes and asks and ready - us or 0
local answer = {admitted and ADMITTED or DENIED, wait}
for _, turn in ipairs(turns) do
  local retry = 0
  if asks and not (writes and turn.used) then
    retry = turn.earliest and turn.earliest - us or -1
  end
  answer[#answer + 1] = booked > us and 0 or turn.method.remaining(turn.kept, us, turn.capacity)
  answer[#answer + 1] = math.max(turn.method.ends(turn.kept) - us, 0)
  answer[#answer + 1] = retry
end
if wait > 0 then
  answer[#answer + 1] = value or ""
  answer[#answer + 1] = written
end
return answer
