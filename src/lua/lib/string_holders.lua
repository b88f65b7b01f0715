-- A mutex' holder: a STRING with the token of who holds it, expired by PX. `S` in the records names
-- the holder that we wrote last, because an expired one leaves its record behind.

local function holders_open(gate, last)
  gate.value = redis.call("GET", gate.main)
  gate.last = last
end

-- Milliseconds that `token` still holds, or nil. A key that somebody stripped of its TTL is worth a
-- claim at a time.
local function holders_left(gate, token)
  if gate.value ~= token then
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
  return redis.call("PTTL", gate.main), gate.value == gate.last and 0 or 1
end

-- Forgets `token`, and frees the key if it is the one that holds.
local function holders_remove(gate, token)
  if gate.value == token then
    redis.call("DEL", gate.main)
    gate.value = false
  end
  if gate.last == token then
    redis.call("HDEL", gate.records, token, "S")
    gate.last = false
  else
    redis.call("HDEL", gate.records, token)
  end
end

-- Forgets the holder that has expired. One that never renewed its claim makes its process a
-- suspect.
local function holders_settle(gate)
  if gate.last and gate.last ~= gate.value then
    local text = redis.call("HGET", gate.records, gate.last)
    if text and record_parse(text) == "c" then
      roster_suspect(gate.roster, gate.last, gate.ms)
    end
    holders_remove(gate, gate.last)
  end
end

local function holders_fit(gate)
  holders_settle(gate)
  return not gate.value
end

local function holders_put(gate, token, _, lease_ms)
  redis.call("SET", gate.main, token, "PX", lease_ms)
  redis.call("HSET", gate.records, "S", token)
  gate.value = token
  gate.last = token
end

-- Makes the lease of `token` at least `lease_ms` long; never shortens it.
local function holders_extend(gate, _, lease_ms)
  if redis.call("PTTL", gate.main) < lease_ms then
    redis.call("PEXPIRE", gate.main, lease_ms)
  end
end
