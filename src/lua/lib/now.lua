-- The server's clock, in microseconds; the property tests swap this file for one that takes the
-- time as an argument.
local function now_us()
  local time = redis.call("TIME")
  return time[1] * 1000000 + time[2]
end
