-- How long things last on the server when nobody speaks for them.

-- What a pushed grant or a heartbeat is worth, in ms. The client's `CLAIM` says the same.
local CLAIM_MS = 3000
local CLAIM = "3000"
-- What was said a moment ago, a heartbeat, need not be said again.
local SAID_MS = 300
-- How long the side keys outlive their last use, in ms.
local KEEP_MS = 60000
local KEEP = "60000"
-- How long a waiter without a deadline of its own may stand in the queue, in ms. The client's `LONGEST_WAIT` says the same.
local WAIT_MS = 86400000

-- Gives a key at least `ms` more to live. Never shortens: another lease may need the key for
-- longer. Half a second on top spares most calls the write.
local function keep(key, ms)
  if redis.call("PTTL", key) < ms then
    redis.call("PEXPIRE", key, ms + 500)
  end
end

-- How long the clock is kept for a lease of that many ms, both as text.
local function keep_for(lease_ms)
  if #lease_ms > #KEEP or #lease_ms == #KEEP and lease_ms > KEEP then
    return lease_ms
  end
  return KEEP
end
