-- Who holds a mutex on this server: a STRING that expires by PX, the holder's name and nothing else, since plain Redlock clients
-- write and compare it, too.

-- Whether `name` holds; else whether there is room, and if not the ticket of who is in the way (-1: a stranger has none), in how
-- many ms its lease ends, and 1 if it is a stranger.
local function holders_look(main, name)
  local value = redis.call("GET", main)
  if not value or value == name then
    return value == name, not value, -1, 0, 0
  end
  local ticket = name_parts(value)
  return false, false, ticket or -1, redis.call("PTTL", main), ticket and 0 or 1
end

-- A key that somebody stripped of its TTL is worth a claim at a time.
local function holders_left(main)
  local left = redis.call("PTTL", main)
  return left < 0 and CLAIM_MS or left
end

local function holders_put(main, name, _, lease_ms)
  redis.call("SET", main, name, "PX", lease_ms)
end

-- Never shortens a lease.
local function holders_extend(main, _, _, lease_ms)
  if redis.call("PTTL", main) < lease_ms then
    redis.call("PEXPIRE", main, lease_ms)
  end
end

local function holders_remove(main, name)
  if redis.call("GET", main) == name then
    return redis.call("DEL", main) == 1
  end
  return false
end

local function holders_full(main)
  return redis.call("EXISTS", main) == 1
end
