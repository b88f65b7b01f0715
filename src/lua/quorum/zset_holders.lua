-- Who holds permits on this server: a ZSET, name -> end of its lease in ms of the server's clock. There are few: as many permits as
-- a quorum can keep apart are fewer than it has servers.

-- The permits that are out, the greatest ticket among their holders, and the first end of a lease.
local function holders_sum(main, ms)
  redis.call("ZREMRANGEBYSCORE", main, "-inf", ms)
  local all = redis.call("ZRANGE", main, 0, -1, "WITHSCORES")
  local used, youngest = 0, -1
  for index = 1, #all, 2 do
    local ticket, weight = name_parts(all[index])
    used, youngest = used + (weight or 1), math.max(youngest, ticket or -1)
  end
  return used, youngest, all[2] and math.max(all[2] - ms, 0) or 0
end

local function holders_look(main, name, ms, weight, limit)
  if redis.call("EXISTS", main) == 0 then
    return false, true, -1, 0, 0
  end
  local used, youngest, next_ms = holders_sum(main, ms)
  if redis.call("ZSCORE", main, name) then
    return true, false, -1, 0, 0
  end
  return false, used + weight <= limit, youngest, next_ms, 0
end

local function holders_left(main, name, ms)
  return (tonumber(redis.call("ZSCORE", main, name)) or ms) - ms
end

local function holders_put(main, name, ms, lease_ms)
  redis.call("ZADD", main, digits(ms + lease_ms), name)
  keep(main, lease_ms)
end

-- Never shortens a lease.
local function holders_extend(main, name, ms, lease_ms)
  redis.call("ZADD", main, "XX", "GT", digits(ms + lease_ms), name)
  keep(main, lease_ms)
end

local function holders_remove(main, name, ms)
  local ends = tonumber(redis.call("ZSCORE", main, name))
  return ends and redis.call("ZREM", main, name) == 1 and ends > ms
end

local function holders_full(main, ms, limit)
  return redis.call("EXISTS", main) == 1 and holders_sum(main, ms) >= limit
end
