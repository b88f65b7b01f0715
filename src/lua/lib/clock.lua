-- The clock of a hash tag: a STRING with the greatest number that was drawn under it. Tickets and fences are drawn from it, and
-- rise strictly over all gates of the tag: by the time, also where that is set back, and after a loss of data.

local function clock_read(clock)
  return tonumber(redis.call("GET", clock)) or 0
end

-- Draws the next number. It is remembered for `lease_ms`, and for a minute at the least.
local function clock_draw(clock, us, lease_ms)
  local keep_ms = math.max(lease_ms, KEEP_MS)
  local last = tonumber(redis.call("SET", clock, digits(us), "PX", keep_ms, "GET")) or 0
  if last < us then
    return us
  end
  -- The time was set back, or stands.
  redis.call("SET", clock, digits(last + 1), "PX", keep_ms)
  return last + 1
end
