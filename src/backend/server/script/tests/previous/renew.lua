-- lease/renew: lengthen many leases of one hash tag, and say that their process is alive. With no
-- lease it is the heartbeat. It creates nothing: what is gone stays gone.
--
-- KEYS[1]  roster  zset  who is alive, suspect, ended
-- KEYS[2]  clock   string  the number drawn last under this hash tag
-- KEYS[3], KEYS[4]  main, records  string or zset, hash  the first lease's gate; further leases follow in pairs
-- ARGV[1]  instance  string   of the caller's process
-- ARGV[2]  waits     integer  1: the process has waiters under this tag
-- ARGV[3], ARGV[4], ARGV[5]  token, fence, lease_ms  string, integer, integer  the first lease; further leases follow in triples
--
-- Returns  {us, stamp, left_ms, ...}  for each lease the ms it now has at least, or -1: gone, -2: held with another fence,
--                              -3: a record of another protocol version; stamp is not smaller than the fence of an earlier
--                              push under this tag, and smaller than that of a later one unless the clock stepped back
-- Writes   main, records, roster; the TTL of clock. 5 us for each lease, 12 where records have to be looked at.

local roster, clock = KEYS[1], KEYS[2]
local instance, waits = ARGV[1], ARGV[2] == "1"

local GONE, OTHER, INCOMPATIBLE = -1, -2, -3

local us = now()
local ms = math.floor(us / 1000)

-- What one lease has left once it is renewed, or why it is not.
local function renew(main, records, token, fence, lease_ms)
  local gate = {main = main, records = records, us = us, ms = ms}
  local fields = redis.call("HMGET", records, "S", token)
  holders_open(gate, fields[1])
  local state, weight, limit, lease, number = record_parse(fields[2] or "")
  local left = holders_left(gate, token)
  if fields[2] and not state then
    return INCOMPATIBLE
  end
  local held = (state == "c" or state == "h") and number or not state and holders_fence(gate, token)
  if not left or not held then
    if state == "c" or state == "h" then
      -- What was said to be gone must not come back when the clock is set back.
      holders_remove(gate, token, weight)
    end
    return GONE
  elseif held ~= fence then
    return OTHER
  end
  left = math.max(left, lease_ms)
  holders_extend(gate, token, left)
  local recorded = state ~= nil
  if state == "c" then
    recorded = holders_confirm(gate, token)
    if recorded then
      redis.call("HSET", records, token, record_format("h", weight, limit, lease, digits(number)))
    end
  end
  if recorded then
    keep(records, math.max(lease_ms, KEEP_MS))
  end
  return left
end

-- The same where the value of a mutex says all, and is at hand.
local function renew_told(main, value, token, fence, lease_ms)
  if value ~= token .. " " .. fence then
    return value and string.sub(value, 1, #token + 1) == token .. " " and OTHER or GONE
  end
  local left = redis.call("PTTL", main)
  local least = math.max(left < 0 and CLAIM_MS or left, lease_ms)
  if left < least then
    redis.call("PEXPIRE", main, digits(least))
  end
  return least
end

-- Who speaks is no suspect. And first, because a server out of memory refuses a script's writes
-- unless it began with one that frees: leases at hand must last.
roster_clear(roster, instance)
local answer = {us, math.max(us, clock_read(clock))}
local longest_ms = KEEP_MS
local mains, sides = {}, {}
for index = 1, (#KEYS - 2) / 2 do
  mains[index], sides[index] = KEYS[2 * index + 1], KEYS[2 * index + 2]
end
local values = mains[1] and holders_told(mains, sides)
for index = 1, (#ARGV - 2) / 3 do
  local token, fence, lease_ms = ARGV[3 * index], ARGV[3 * index + 1], tonumber(ARGV[3 * index + 2])
  local done, left = true, nil
  if values then
    left = renew_told(mains[index], values[index], token, fence, lease_ms)
  else
    done, left = pcall(renew, mains[index], sides[index], token, tonumber(fence), lease_ms)
  end
  if not done then
    -- A foreign value stands where the lease was. That ends this one, and must not end the others.
    local text = type(left) == "table" and left.err or left
    if not string.find(text, "WRONGTYPE", 1, true) then
      error(left)
    end
    left = GONE
  end
  answer[index + 2] = left
  longest_ms = math.max(longest_ms, lease_ms)
end
keep(clock, longest_ms)
if waits then
  roster_alive(roster, instance, ms)
  roster_purge(roster, ms)
end
return answer
