-- Processes, as their tokens name them.

-- The first characters of a token name the process that drew it.
local INSTANCE_LENGTH = 12

local function instance_of(token)
  return string.sub(token, 1, INSTANCE_LENGTH)
end

-- Says of a member of the roster that it is true for `ms`.
local function roster_note(roster, member, ms, now_ms)
  redis.call("ZADD", roster, digits(now_ms + ms), member)
  keep(roster, math.max(ms, KEEP_MS))
end
