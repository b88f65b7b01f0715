-- The quick way of lease/end for a semaphore: one of its holders releases what it holds, and nobody waits.
if ARGV[3] == "0" and redis.call("EXISTS", KEYS[2]) == 0 then
  local fields = redis.call("HMGET", KEYS[3], "S", ARGV[1])
  local state, weight = record_parse(fields[2] or "")
  local ends = tonumber(redis.call("ZSCORE", KEYS[1], ARGV[1]))
  if fields[1] and (state == "c" or state == "h") and ends then
    local us = now()
    if ends > math.floor(us / 1000) then
      redis.call("ZREM", KEYS[1], ARGV[1])
      redis.call("HSET", KEYS[3], "S", digits(math.max(fields[1] - weight, 0)))
      redis.call("HDEL", KEYS[3], ARGV[1])
      return {0, us, 0, 0}
    end
  end
end
