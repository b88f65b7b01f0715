-- The one loop that hands permits on, shared by every operation that may have made room.

-- How many deserted places one call clears at most; 3 us each.
local MAX_DROPPED = 64

-- Drops a waiter, and its record.
local function drop(gate, token)
  gate_leave(gate, token)
  redis.call("HDEL", gate.records, token)
  gate.dropped = gate.dropped + 1
end

-- 1 if this call stopped at its bound, so that another has to go on.
local function more(gate)
  return gate.dropped >= MAX_DROPPED and 1 or 0
end

-- Looks for deserted places anywhere in a full queue, and returns whether it found one. `grant`
-- clears those at the head only; a crowd that died behind a living head would keep newcomers out.
-- The window moves with the clock, and is small: whoever is turned away pays for it, 10 us a place,
-- and a flood of them would else keep the server from hearing that those who wait are alive.
local MAX_SWEPT = 4
local function sweep(gate)
  local first = gate.us % gate.waiters
  local found = false
  local places = redis.call("ZRANGE", gate.queue, first, first + MAX_SWEPT - 1, "WITHSCORES")
  for index = 1, #places, 2 do
    local token = places[index]
    local text = redis.call("HGET", gate.records, token)
    local state, _, _, _, deadline = gate_terms(text, places[index + 1])
    if not (text or state) or gate_deserted(gate, token, deadline) then
      drop(gate, token)
      found = true
    end
  end
  return found
end

-- Gives a claim to another process' waiter and tells it. Returns false where the hand-off can't go
-- on: pushes are forbidden to this user.
local function push_grant(gate, token, weight, limit, lease_ms, waiting)
  local ms = math.min(lease_ms, CLAIM_MS)
  local _, fence = gate_put(gate, token, "c", weight, limit, lease_ms, ms, waiting)
  -- Last, because nothing rolls back a script: what is told must stand. And by pcall, because a
  -- refused PUBLISH would end the script with the permit given to somebody who never hears of it.
  local text = "g " .. token .. " " .. fence .. " " .. ms
  if gate.kept > 0 then
    text = text .. " " .. others(gate, instance_of(token))
  end
  local heard = redis.pcall(PUBLISH, inbox_of(gate.roster, instance_of(token)), text)
  if type(heard) == "table" then
    holders_remove(gate, token, weight)
    if waiting then
      redis.call("HSET", gate.records, token, waiting)
    end
    return false
  end
  if heard == 0 then
    -- Its subscription is gone: the process is dead, or will sync its waiters when it is back. Its
    -- other places are deserted too.
    holders_remove(gate, token, weight)
    local instance = instance_of(token)
    redis.call("ZREM", gate.roster, instance)
    gate.alive = instance == gate.caller and 0 or gate.alive
    drop(gate, token)
  else
    gate_leave(gate, token)
  end
  return true
end

-- Grants from the head of the queue while requests fit: strictly in order, so a large one is not
-- starved. The caller's own token `own` is granted `own_ms` in the answer, all others a claim by push. Returns the
-- fence of `own` if it was granted, and whether the whole queue was passed, so that a newcomer
-- would be next.
local function grant(gate, own, own_ms)
  local passed = 0
  if holders_full(gate) then
    return nil, false
  end
  if gate.waiters > 0 then
    -- Settled before the caller's process is cleared: a claim of its own that ran out would else
    -- make it a suspect again, and the loop would pass over waiters of a process that is awake.
    holders_settle(gate)
    -- Not without need: at maxmemory, a script that has written once may go on, and a newcomer
    -- should not.
    if gate.suspect then
      roster_clear(gate.roster, gate.caller)
      gate.suspect = false
    end
  end
  while gate.waiters > passed and gate.dropped < MAX_DROPPED and not holders_full(gate) do
    local at = digits(passed)
    local place = redis.call("ZRANGE", gate.queue, at, at, "WITHSCORES")
    local token = place[1]
    local text = redis.call("HGET", gate.records, token)
    local state, weight, limit, lease_ms, deadline = gate_terms(text, place[2])
    local deserted, suspect = not (text or state), false
    if not deserted and token ~= own then
      deserted, suspect = gate_deserted(gate, token, deadline)
    end
    if deserted then
      drop(gate, token)
    elseif not state then
      -- A later release's record: what it asks for is unknown here, so its place is respected.
      return nil, false
    elseif weight > gate_limit(gate, limit) then
      redis.pcall(PUBLISH, inbox_of(gate.roster, instance_of(token)), "n " .. token .. " " .. digits(gate_stamp(gate)))
      drop(gate, token)
    elseif not holders_fit(gate, weight, gate_limit(gate, limit)) then
      return nil, false
    elseif token == own then
      gate_leave(gate, token)
      local fence = gate_put(gate, token, "h", weight, limit, own_ms, own_ms, text)
      return fence, false
    elseif state == "p" then
      -- Nobody could tell it; it asks again soon, and keeps its turn.
      return nil, false
    elseif suspect then
      passed = passed + 1
    elseif not push_grant(gate, token, weight, limit, lease_ms, text) then
      return nil, false
    end
  end
  return nil, gate.waiters <= passed
end
