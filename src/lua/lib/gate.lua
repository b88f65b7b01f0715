-- One gate as a script sees it: its keys, its tag's clock, its holders.

-- Reads what every operation needs, and so checks every key's type: a foreign value under one of
-- them ends the script here, before anything is written. Returns the gate and the record of
-- `token`, false if there is none.
local function gate_open(main, queue, records, roster, clock, token, us)
  local gate = {
    main = main,
    queue = queue,
    records = records,
    roster = roster,
    clock = clock,
    caller = instance_of(token),
    us = us,
    ms = math.floor(us / 1000),
    dropped = 0,
  }
  local fields = redis.call("HMGET", records, "L", "S", token)
  gate.override = tonumber(fields[1])
  gate.waiters = redis.call("ZCARD", queue)
  holders_open(gate, fields[2])
  redis.call("ZCARD", roster)
  gate.drawn = clock_read(clock)
  return gate, fields[3]
end

-- What every answer carries: what is drawn under this tag later is greater, what was drawn before is
-- not.
local function gate_stamp(gate)
  return math.max(gate.drawn, gate.us)
end

-- The limit that a request is judged by: its own, unless an operator has set one for the gate.
local function gate_limit(gate, limit)
  return gate.override or limit
end

-- Draws the next ticket or fence.
local function gate_draw(gate, lease_ms)
  gate.drawn = clock_draw(gate.clock, gate.us, lease_ms)
  return gate.drawn
end

-- Makes `token` a holder for `ms` and returns its fence.
local function gate_put(gate, token, state, weight, limit, lease_ms, ms)
  local fence = gate_draw(gate, lease_ms)
  if holders_put(gate, token, weight, ms, state, fence) then
    redis.call("HSET", gate.records, token, record_format(state, weight, limit, lease_ms, fence))
    keep(gate.records, math.max(lease_ms, KEEP_MS))
  else
    -- What it was recorded with as a waiter.
    redis.call("HDEL", gate.records, token)
  end
  return fence
end

-- Takes `token` out of the queue.
local function gate_leave(gate, token)
  gate.waiters = gate.waiters - redis.call("ZREM", gate.queue, token)
end

-- Whether nobody is left to use this waiter's place: its process is gone, or its own deadline is. A
-- later release's record tells no deadline.
local function gate_deserted(gate, token, deadline)
  return deadline and deadline < gate.ms or not roster_has(gate.roster, instance_of(token), gate.ms)
end
