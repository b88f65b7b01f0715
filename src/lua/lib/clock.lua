-- The clock of a hash tag: a STRING with the greatest number that was drawn under it. Tickets and fences are drawn from it, and
-- rise strictly over all gates of the tag: by the time, also where that is set back, and after a loss of data.

-- How long the clock is kept for a lease of that many ms, both as text.
local function keep_for(lease_ms)
  if #lease_ms > #KEEP or #lease_ms == #KEEP and lease_ms > KEEP then
    return lease_ms
  end
  return KEEP
end

-- Draws the next number, at the time `text`; all as text. It is remembered for `keep_ms`. Returns nil where the server refuses:
-- at maxmemory what frees has to come first, which a quick way leaves to the whole script.
local function clock_draw(clock, text, keep_ms)
  local last = redis.pcall("SET", clock, text, "PX", keep_ms, "GET")
  -- Texts of one length are in the order of their numbers.
  if not last or #last == #text and last < text then
    return text
  end
  if type(last) == "table" then
    return nil
  end
  last = tonumber(last) or 0
  if last < tonumber(text) then
    return text
  end
  -- The time was set back, or stands.
  text = digits(last + 1)
  redis.call("SET", clock, text, "PX", keep_ms)
  return text
end
