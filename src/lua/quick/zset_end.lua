-- The quick way of lease/end for a semaphore: one of its holders releases what it holds, and nobody waits.
local released = false
if ARGV[2] == "0" and redis.call("EXISTS", KEYS[2]) == 0 then
  local fields = redis.call("HMGET", KEYS[3], "S", ARGV[1])
  local weight = fields[1] and fields[2] and string.match(fields[2], "^1[ch] (%d+) %d+ %d+ %d+")
  local ends = weight and redis.call("ZSCORE", KEYS[1], ARGV[1])
  if ends and ends - string.sub(now(), 1, -4) > 0 then
    redis.call("ZREM", KEYS[1], ARGV[1])
    redis.call("HSET", KEYS[3], "S", digits(math.max(fields[1] - weight, 0)))
    redis.call("HDEL", KEYS[3], ARGV[1])
    return 0
  end
end
