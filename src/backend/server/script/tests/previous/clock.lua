-- The clock of a hash tag: a STRING with the greatest number that was drawn under it. Tickets and fences are drawn from it, and
-- rise strictly over all gates of the tag: by the time, also where that is set back, and after a loss of data.

local function clock_read(clock)
  return tonumber(redis.call("GET", clock)) or 0
end

-- Draws the next number, at a time given as such and as text, and returns it in the same way. It is remembered for `lease_ms`, and
-- for a minute at the least.
local function clock_draw(clock, us, text, lease_ms)
  local keep_ms = lease_ms > KEEP_MS and digits(lease_ms) or KEEP
  local last = redis.call("SET", clock, text, "PX", keep_ms, "GET")
  if not last then
    return us, text
  end
  last = tonumber(last) or 0
  if last < us then
    return us, text
  end
  -- The time was set back, or stands.
  text = digits(last + 1)
  redis.call("SET", clock, text, "PX", keep_ms)
  return last + 1, text
end
