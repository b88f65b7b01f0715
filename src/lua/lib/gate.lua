-- One gate as a script sees it: its keys, its fence counter, its holders.

-- Reads what every operation needs, and so checks every key's type: a foreign value under one of
-- them ends the script here, before anything is written. Returns the gate and the record of
-- `token`, false if there is none.
local function gate_open(main, queue, records, roster, token, us)
  local gate = {
    main = main,
    queue = queue,
    records = records,
    roster = roster,
    caller = instance_of(token),
    us = us,
    ms = math.floor(us / 1000),
    dropped = 0,
  }
  local fields = redis.call("HMGET", records, "F", "L", "S", token)
  gate.fence = tonumber(fields[1]) or 0
  gate.override = tonumber(fields[2])
  gate.waiters = redis.call("ZCARD", queue)
  holders_open(gate, fields[3])
  redis.call("ZCARD", roster)
  return gate, fields[4]
end

-- What every answer carries: whatever this gate draws later is greater, whatever it drew before is
-- not.
local function gate_stamp(gate)
  return math.max(gate.fence, gate.us)
end

-- The limit that a request is judged by: its own, unless an operator has set one for the gate.
local function gate_limit(gate, limit)
  return gate.override or limit
end

-- Draws the next ticket or fence. Strictly rising per key, and still so after data loss, because it
-- follows the clock.
local function gate_draw(gate)
  gate.fence = math.max(gate.fence + 1, gate.us)
  return gate.fence
end

-- Makes `token` a holder and returns its fence.
local function gate_put(gate, token, state, weight, limit, lease_ms, ms)
  local fence = gate_draw(gate)
  holders_put(gate, token, weight, ms)
  redis.call("HSET", gate.records, "F", fence, token, record_format(state, weight, limit, lease_ms, fence))
  keep(gate.records, math.max(lease_ms, KEEP_MS))
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
