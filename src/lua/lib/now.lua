-- The server's clock in microseconds, and the same as text; the property tests swap this file for one
-- that takes the time as an argument.
local function now()
  local time = redis.call("TIME")
  local text = time[2]
  if #text < 6 then
    text = string.format("%06d", text)
  end
  return time[1] * 1000000 + time[2], time[1] .. text
end
