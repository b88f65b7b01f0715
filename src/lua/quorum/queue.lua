-- Names, and the queue of those who wait. A name is "<token>.<ticket>.<weight>": of one acquisition, the same on every server. The
-- ticket is the client's, so that all servers put those who wait in the same order; the queue is a ZSET, name -> ticket.

-- The ticket and the weight in a name; nothing for what some other client wrote.
local function name_parts(name)
  local ticket, weight = string.match(name, "^[%w_-]+%.(%d+)%.(%d+)$")
  return tonumber(ticket), tonumber(weight)
end

-- How many deserted places one call clears at most.
local MAX_DROPPED = 64

-- The first who waits and whose process is alive, its ticket, and whether it listens for pushes. The deserted before it are dropped.
-- A process that polls says so by "~<instance>".
local function queue_first(queue, roster, ms)
  for _ = 1, MAX_DROPPED do
    local place = redis.call("ZRANGE", queue, 0, 0, "WITHSCORES")
    local name = place[1]
    if not name then
      return nil
    end
    local instance = instance_of(name)
    local ends = redis.call("ZMSCORE", roster, instance, "~" .. instance)
    local listens, polls = (tonumber(ends[1]) or 0) >= ms, (tonumber(ends[2]) or 0) >= ms
    if listens or polls then
      return name, tonumber(place[2]), listens
    end
    redis.call("ZREM", queue, name)
  end
  return nil
end

-- Tells the first who waits to try again. Whom nobody hears is dropped: it enters anew when its process listens again.
local function queue_tell(queue, roster, ms, except)
  for _ = 1, MAX_DROPPED do
    local name, _, listens = queue_first(queue, roster, ms)
    if not name or name == except or not listens then
      return
    end
    if redis.pcall(PUBLISH, inbox_of(roster, instance_of(name)), name) ~= 0 then
      return
    end
    redis.call("ZREM", queue, name)
  end
end
