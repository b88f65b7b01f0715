-- The quick ways of lease/end for a mutex that others want: its holder releases it, and nobody waits any more, or the one who waits
-- first lives, listens, and is no suspect, and nobody keeps what it is granted. What they do not answer, the whole script does,
-- which goes on from what they began.
local released = false
if mine then
  local place = redis.call("ZRANGE", KEYS[2], "0", "0", "WITHSCORES")
  local waiter = place[1]
  local fields = redis.call("HMGET", KEYS[3], "L", "S", ARGV[1], waiter or ARGV[1], "K")
  local plain = not (fields[1] or fields[3]) and (not fields[2] or fields[2] == ARGV[1])
  if plain and not waiter then
    redis.call("DEL", KEYS[1])
    redis.call("HDEL", KEYS[3], "S")
    return 0
  elseif plain and not fields[5] then
    local lease_ms, deadline = CLAIM, nil
    if fields[4] then
      lease_ms, deadline = string.match(fields[4], "^1w 1 1 (%d+) (%d+)")
    else
      deadline = place[2] / 1000 + WAIT_MS
    end
    local instance = instance_of(waiter)
    local ends = redis.call("ZMSCORE", KEYS[4], instance, "?" .. instance, "?" .. instance_of(ARGV[1]))
    local text = now()
    local ms = string.sub(text, 1, -4)
    local lives = deadline and deadline - ms >= 0 and ends[1] and ends[1] - ms >= 0 and not (ends[2] or ends[3])
    local drawn = lives and clock_draw(KEYS[5], text, KEEP)
    if drawn then
      if lease_ms - CLAIM_MS > 0 then
        lease_ms = CLAIM
      end
      redis.call("SET", KEYS[1], waiter .. " " .. drawn, "PX", lease_ms)
      redis.call("HSET", KEYS[3], "S", waiter)
      keep(KEYS[3], KEEP_MS)
      local told = "g " .. waiter .. " " .. drawn .. " " .. lease_ms
      local heard = redis.pcall(PUBLISH, inbox_of(KEYS[4], instance), told)
      if type(heard) == "number" and heard > 0 then
        redis.call("ZREM", KEYS[2], waiter)
        if fields[4] then
          redis.call("HDEL", KEYS[3], waiter)
        end
        return 0
      end
      -- Undone, but for the release. Who can't hear is not alive, which clears its places.
      released = true
      redis.call("DEL", KEYS[1])
      redis.call("HDEL", KEYS[3], "S")
      if heard == 0 then
        redis.call("ZREM", KEYS[4], instance)
      end
    end
  end
end
