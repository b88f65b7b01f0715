-- The quick way of lease/acquire for a semaphore: nobody waits, and there is room without looking for what has expired. Answers as
-- the whole script would; what it does not answer, that does.
if redis.call("EXISTS", KEYS[2]) == 0 and not redis.call("ZSCORE", KEYS[4], "!" .. ARGV[1]) then
  local fields = redis.call("HMGET", KEYS[3], "L", "S", ARGV[1])
  local count = redis.call("ZCARD", KEYS[1])
  local used = count == 0 and 0 or tonumber(fields[2]) or count
  local us, text = now()
  local ms = math.floor(us / 1000)
  used = used + ARGV[3]
  if not fields[3] and used <= tonumber(fields[1] or ARGV[4]) and ms <= tonumber(ARGV[6]) then
    local lease_ms = tonumber(ARGV[5])
    local keep_ms = math.max(lease_ms, KEEP_MS)
    local fence, drawn = clock_draw(KEYS[5], us, text, lease_ms)
    -- After a loss of the records it may be there already, and was counted as 1.
    used = used - 1 + redis.call("ZADD", KEYS[1], digits(ms + lease_ms), ARGV[1])
    redis.call("HSET", KEYS[3], "S", digits(used), ARGV[1], record_format("h", ARGV[3], ARGV[4], ARGV[5], drawn))
    keep(KEYS[1], keep_ms)
    keep(KEYS[3], keep_ms)
    return {0, us, fence, fence, lease_ms}
  end
end
