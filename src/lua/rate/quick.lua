-- The quick way of a check by a single GCRA: nothing is booked, nothing has changed. Decides as the whole script would, in a third of
-- its time, and answers by one number: the debt in microseconds that it leaves, or as a negative number the debt that it finds too
-- great. What it does not answer, that does.

-- How a GCRA alone is kept (see state.lua), and the debt from which on it is not, 2^48: more than two bursts, which come back in 1,000
-- days each at most.
local LONE, LONE_END_US = "<c1I7I6I6", 281474976710656

if #ARGV == 8 and ARGV[1] == "c" and ARGV[5] == "g" and ARGV[6] == "0" then
  local us = tonumber(now())
  local id, interval, debt = ARGV[4] ~= "0" and ARGV[4] or "", tonumber(ARGV[7]), nil
  local value = redis.call("GET", KEYS[1])
  if not value then
    debt = 0
  elseif string.sub(value, 1, 1) == "3" and string.sub(value, 21) == id then
    local _, at, owed, counted = struct.unpack(LONE, value)
    if counted == interval and at <= us then
      debt = math.max(at + owed - us, 0)
    end
  end
  if debt then
    local after = debt + ARGV[2] * interval
    if after <= ARGV[8] * interval then
      local state = struct.pack(LONE, "3", us, after, interval) .. id
      redis.call("SET", KEYS[1], state, "PX", digits(math.ceil(after / 1000)))
      return after
    end
    -- A key that was stripped of its TTL is repaired.
    if debt > 0 and redis.call("PTTL", KEYS[1]) ~= -1 then
      return -debt
    end
  end
end
