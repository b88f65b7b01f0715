-- The server's clock in microseconds, as text: most of what is done with it needs no number. The property tests swap this file for
-- one that takes the time as an argument.
local function now()
  local time = redis.call("TIME")
  local text = time[2]
  if #text < 6 then
    text = string.format("%06d", text)
  end
  return time[1] .. text
end
