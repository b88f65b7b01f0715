-- How long things last on the server when nobody speaks for them.

-- What a pushed grant or a heartbeat is worth, in ms. The client's `CLAIM` says the same.
local CLAIM_MS = 3000
-- How long the side keys outlive their last use, in ms.
local KEEP_MS = 60000
local KEEP = "60000"

-- Gives a key at least `ms` more to live. Never shortens: another lease may need the key for
-- longer. Half a second on top spares most calls the write.
local function keep(key, ms)
  if redis.call("PTTL", key) < ms then
    redis.call("PEXPIRE", key, ms + 500)
  end
end
