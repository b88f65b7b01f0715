-- A mutex' holder: a STRING that expires by PX. Where the key is ours alone (FENCED), it is "<token> <fence>", which says all of one
-- who holds: where it holds a claim that was not renewed, `S` names it too. Where other clients know the key it is the bare token,
-- which they compare, and what it does not say, a record does: of the holder named by `S`. So an expired one is known by what it
-- leaves behind.

local function holders_open(gate, last)
  gate.value = redis.call("GET", gate.main)
  gate.holder = gate.value
  if FENCED and gate.value then
    local token, fence = string.match(gate.value, "^(%S+) (%d+)$")
    gate.holder, gate.told = token or gate.value, tonumber(fence)
  end
  gate.last = last
end

-- Whether `S` alone tells that `token` held a claim.
local function holders_trace(gate, token)
  return FENCED and gate.last == token
end

-- What a waiter without a record asks for, at the least: it is of no use to say more of most.
local function holders_usual(ticket)
  return "w", 1, 1, CLAIM_MS, math.floor(ticket / 1000) + WAIT_MS
end

-- The fence of `token`, where no record need say it, or nil.
local function holders_fence(gate, token)
  return gate.holder == token and gate.told or nil
end

-- The values of many gates, if they say all: what most renewals find.
local function holders_told(mains, records)
  return FENCED and redis.call("EXISTS", unpack(records)) == 0 and redis.call("MGET", unpack(mains))
end

-- Milliseconds that `token` still holds, or nil. A key that somebody stripped of its TTL is worth a
-- claim at a time.
local function holders_left(gate, token)
  if gate.holder ~= token then
    return nil
  end
  local left = redis.call("PTTL", gate.main)
  return left < 0 and CLAIM_MS or left
end

-- Milliseconds until the lease ends (-1: the key has no TTL), and 1 if a stranger holds it.
local function holders_next_end(gate)
  if not gate.value then
    return 0, 0
  end
  return redis.call("PTTL", gate.main), (gate.told or gate.holder == gate.last) and 0 or 1
end

-- The tokens of ours that hold.
local function holders_list(gate)
  return (gate.told or gate.holder and gate.holder == gate.last) and {gate.holder} or {}
end

-- Whether `token` holds.
local function holders_hold(gate, token)
  return gate.holder == token
end

-- Whether no request fits, whatever it asks for: the key of an expired holder is gone.
local function holders_full(gate)
  return gate.value and true
end

-- Forgets what is recorded of a holder.
local function holders_forget(gate, token)
  if gate.last == token then
    redis.call("HDEL", gate.records, token, "S")
    gate.last = false
  else
    redis.call("HDEL", gate.records, token)
  end
end

-- Forgets `token`, and frees the key if it is the one that holds.
local function holders_remove(gate, token)
  if gate.holder == token then
    redis.call("DEL", gate.main)
    gate.value, gate.holder, gate.told = false, false, nil
  end
  holders_forget(gate, token)
end

-- Forgets `token` where it stands unrecorded.
local function holders_strip(gate, token)
  if gate.holder == token then
    holders_remove(gate, token)
  end
end

-- Forgets the holder that has expired. One that never renewed its claim makes its process a
-- suspect.
local function holders_settle(gate)
  if gate.last and gate.last ~= gate.holder then
    local text = not FENCED and redis.call("HGET", gate.records, gate.last)
    if FENCED or text and record_parse(text) == "c" then
      roster_suspect(gate, gate.last)
    end
    holders_remove(gate, gate.last)
  end
end

local function holders_fit(gate)
  holders_settle(gate)
  return not gate.value
end

-- Makes `token` the holder. If `S` has to tell of it, returns what it is to be.
local function holders_put(gate, token, _, ms, state, fence)
  redis.call("SET", gate.main, FENCED and token .. " " .. fence or token, "PX", ms)
  gate.value, gate.holder, gate.told = token, token, FENCED and tonumber(fence) or nil
  if FENCED and state == "h" then
    return nil
  end
  gate.last = token
  return token
end

-- Makes the lease of `token` at least `ms` long; never shortens it.
local function holders_extend(gate, _, ms)
  if redis.call("PTTL", gate.main) < ms then
    redis.call("PEXPIRE", gate.main, ms)
  end
end

-- The claim of `token` was renewed. Returns whether a record has to tell of it still.
local function holders_confirm(gate, token)
  if FENCED then
    redis.call("HDEL", gate.records, "S")
    gate.last = false
  end
  return not FENCED
end
