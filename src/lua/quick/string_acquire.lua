-- The quick way of lease/acquire for a mutex that others want: another holds, by its value, and the caller is new, and waits at the
-- end of a queue that has room, and nobody keeps what it is granted. Answers as the whole script would; what it
-- does not answer, that does.
local wait_ms, max_waiters = string.match(ARGV[4], "^1 1 ([1-9]%d*) (%d+) 0 1 0$")
local value = wait_ms and there > 0 and redis.call("GET", KEYS[1])
local holder = value and string.match(value, "^(%S+) %d+$")
if holder and holder ~= ARGV[1] then
  local waiters = redis.call("ZCARD", KEYS[2])
  local fields = redis.call("HMGET", KEYS[3], "L", ARGV[1], "K")
  local instance = instance_of(ARGV[1])
  local ends = redis.call("ZMSCORE", KEYS[4], instance, "?" .. instance, "!" .. ARGV[1])
  local fresh = not (fields[1] or fields[2] or fields[3] or ends[2] or ends[3] or redis.call("ZSCORE", KEYS[2], ARGV[1]))
  local text = now()
  local drawn = fresh and max_waiters - waiters > 0 and #text == #ARGV[3] and text <= ARGV[3]
    and clock_draw(KEYS[5], text, KEEP)
  if drawn then
    local ms = string.sub(text, 1, -4)
    redis.call("ZADD", KEYS[2], drawn, ARGV[1])
    keep(KEYS[2], KEEP_MS)
    -- As `gate_note` has it: what is usual is not recorded.
    if wait_ms - WAIT_MS ~= 0 or ARGV[2] - CLAIM_MS < 0 or string.sub(drawn, 1, -4) ~= ms then
      redis.call("HSET", KEYS[3], ARGV[1], record_format("w", "1", "1", ARGV[2], digits(ms + wait_ms)))
      keep(KEYS[3], keep_for(ARGV[2]) + 0)
    end
    if (ends[1] or 0) - ms < CLAIM_MS - SAID_MS then
      roster_note(KEYS[4], instance, CLAIM_MS, ms)
    end
    return {1, text, drawn, 0, redis.call("PTTL", KEYS[1]), 0, waiters, drawn, 1}
  end
end
