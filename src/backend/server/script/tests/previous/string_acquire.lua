-- The quick way of lease/acquire for a mutex: nobody holds, nobody waits, nothing is recorded, and all is in its value. Answers as
-- the whole script would, in a third of its time; what it does not answer, that does.
if ARGV[3] == "1" then
  local there = redis.call("EXISTS", KEYS[1], KEYS[2], KEYS[3], KEYS[4])
  if there == 0 or there == 1 and redis.call("EXISTS", KEYS[4]) == 1 and not redis.call("ZSCORE", KEYS[4], "!" .. ARGV[1]) then
    local us, text = now()
    if math.floor(us / 1000) <= tonumber(ARGV[6]) then
      local lease_ms = tonumber(ARGV[5])
      local fence, drawn = clock_draw(KEYS[5], us, text, lease_ms)
      redis.call("SET", KEYS[1], ARGV[1] .. " " .. drawn, "PX", ARGV[5])
      return {0, us, fence, fence, lease_ms}
    end
  end
end
