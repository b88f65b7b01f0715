-- The quick way of lease/acquire for a semaphore: nobody waits, and there is room without looking for what has expired. Answers as
-- the whole script would; what it does not answer, that does.
if redis.call("EXISTS", KEYS[2]) == 0 and not redis.call("ZSCORE", KEYS[4], "!" .. ARGV[1]) then
  local weight, limit = string.match(ARGV[4], "^(%d+) (%d+)")
  local fields = redis.call("HMGET", KEYS[3], "L", "S", ARGV[1])
  local count = redis.call("ZCARD", KEYS[1])
  local used = weight + (count == 0 and 0 or fields[2] or count)
  local text = now()
  local keep_ms = keep_for(ARGV[2])
  local drawn = not fields[3] and used <= (fields[1] or limit) + 0 and #text == #ARGV[3] and text <= ARGV[3]
    and clock_draw(KEYS[5], text, keep_ms)
  if drawn then
    -- After a loss of the records it may be there already, and was counted as 1.
    used = used - 1 + redis.call("ZADD", KEYS[1], digits(string.sub(text, 1, -4) + ARGV[2]), ARGV[1])
    redis.call("HSET", KEYS[3], "S", digits(used), ARGV[1], record_format("h", weight, limit, ARGV[2], drawn))
    if string.sub(ARGV[4], -2) ~= " 0" then
      -- The caller keeps it.
      redis.call("HSET", KEYS[3], "K", "1")
    end
    keep(KEYS[1], keep_ms + 0)
    keep(KEYS[3], keep_ms + 0)
    if drawn == text then
      return drawn
    end
    return {0, text, drawn, drawn, ARGV[2]}
  end
end
