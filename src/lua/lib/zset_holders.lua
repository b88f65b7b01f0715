-- A semaphore's holders: a ZSET of tokens by the end of their lease, in ms of the server's clock.
-- `S` in the records is the sum of their weights; where the ZSET is empty it counts as 0, whatever
-- it says.

local function holders_open(gate, used)
  local count = redis.call("ZCARD", gate.main)
  gate.summed = used
  gate.used = count == 0 and 0 or tonumber(used) or count
end

-- Whether `S` alone tells that a token held a claim: never.
local function holders_trace()
  return false
end

-- What a waiter without a record asks for: nobody knows.
local function holders_usual()
  return nil
end

-- The fence of `token`, where no record need say it: never.
local function holders_fence()
  return nil
end

-- The values of many gates, if they say all: they never do.
local function holders_told()
  return nil
end

-- Milliseconds that `token` still holds, or nil.
local function holders_left(gate, token)
  local ends = tonumber(redis.call("ZSCORE", gate.main, token))
  return ends and ends > gate.ms and ends - gate.ms or nil
end

-- The tokens that hold: 128 of them at most, 2 us each for who tells them something.
local function holders_list(gate)
  return redis.call("ZRANGE", gate.main, "0", "127")
end

-- Whether `token` holds.
local function holders_hold(gate, token)
  return holders_left(gate, token) ~= nil
end

-- Whether no request fits, whatever it asks for: each has a limit of its own.
local function holders_full()
  return false
end

-- Milliseconds until the first lease ends; no stranger writes here.
local function holders_next_end(gate)
  local first = redis.call("ZRANGE", gate.main, 0, 0, "WITHSCORES")
  return first[2] and math.max(first[2] - gate.ms, 0) or 0, 0
end

local function holders_remove(gate, token, weight)
  -- Only what is there was counted: a lost ZSET leaves the records of its holders behind.
  if redis.call("ZREM", gate.main, token) == 1 then
    gate.used = math.max(gate.used - weight, 0)
    -- After a loss of the records there is no sum to correct, and writing one would make a key
    -- without TTL.
    if gate.summed then
      redis.call("HSET", gate.records, "S", gate.used)
    end
  end
  redis.call("HDEL", gate.records, token)
end

-- Forgets `token` where it stands unrecorded, as a permit.
local function holders_strip(gate, token)
  holders_remove(gate, token, 1)
end

-- How many expired holders one call forgets at most; 2 us each.
local MAX_SETTLED = 500

-- Forgets the holders that have expired, O(log n) for each. One that never renewed its claim makes
-- its process a suspect.
local function holders_settle(gate)
  local expired = redis.call("ZRANGEBYSCORE", gate.main, "-inf", gate.ms, "LIMIT", 0, MAX_SETTLED)
  for _, token in ipairs(expired) do
    local state, held = record_parse(redis.call("HGET", gate.records, token) or "")
    if state == "c" then
      roster_suspect(gate, token)
    end
    holders_remove(gate, token, held or 1)
  end
end

-- Whether there is room for `weight` more. Only when there seems to be none does it look for
-- holders that have expired.
local function holders_fit(gate, weight, limit)
  if gate.used + weight <= limit then
    return true
  end
  holders_settle(gate)
  return gate.used + weight <= limit
end

-- Makes `token` a holder, and returns what `S` is to be in the record that has to tell of it.
local function holders_put(gate, token, weight, ms)
  -- After a loss of the records it may be there already, and was counted as 1.
  local counted = 1 - redis.call("ZADD", gate.main, digits(gate.ms + ms), token)
  keep(gate.main, math.max(ms, KEEP_MS))
  gate.used = gate.used + weight - counted
  gate.summed = true
  return gate.used
end

-- Makes the lease of `token` at least `ms` long; never shortens it.
local function holders_extend(gate, token, ms)
  redis.call("ZADD", gate.main, "XX", "GT", digits(gate.ms + ms), token)
  keep(gate.main, math.max(ms, KEEP_MS))
end

-- The claim of `token` was renewed. Returns whether a record has to tell of it still.
local function holders_confirm()
  return true
end
