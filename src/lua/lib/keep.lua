-- How keys are kept.

-- Gives a key at least `ms` more to live. Never shortens: another lease may need the key for
-- longer. Half a second on top spares most calls the write.
local function keep(key, ms)
  if redis.call("PTTL", key) < ms then
    redis.call("PEXPIRE", key, ms + 500)
  end
end
