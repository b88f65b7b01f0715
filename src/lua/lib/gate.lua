-- One gate as a script sees it: its keys, its tag's clock, its holders.

-- The number drawn last under the tag.
local function clock_read(clock)
  return tonumber(redis.call("GET", clock)) or 0
end

-- Reads what every operation needs, and so checks every key's type: a foreign value under one of
-- them ends the script here, before anything is written. Returns the gate and the record of
-- `token`, false if there is none.
local function gate_open(main, queue, records, roster, clock, token)
  local text = now()
  local us = tonumber(text)
  local gate = {
    main = main,
    queue = queue,
    records = records,
    roster = roster,
    clock = clock,
    caller = instance_of(token),
    us = us,
    text = text,
    ms = math.floor(us / 1000),
    dropped = 0,
  }
  local fields = redis.call("HMGET", records, "L", "S", "K", token)
  gate.override = tonumber(fields[1])
  gate.kept = tonumber(fields[3]) or 0
  gate.waiters = redis.call("ZCARD", queue)
  holders_open(gate, fields[2])
  local ends = redis.call("ZMSCORE", roster, gate.caller, "?" .. gate.caller, "!" .. token)
  gate.alive, gate.suspect = tonumber(ends[1]) or 0, (tonumber(ends[2]) or 0) >= gate.ms
  gate.ended = (tonumber(ends[3]) or 0) >= gate.ms
  gate.drawn = clock_read(clock)
  return gate, fields[4]
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

-- Draws the next ticket or fence, as such and as text.
local function gate_draw(gate, ms)
  local text = clock_draw(gate.clock, gate.text, keep_for(digits(ms)))
  if not text then
    -- Refused once more, this time with the server's own words.
    text = gate.text
    redis.call("SET", gate.clock, text, "PX", KEEP)
  end
  gate.drawn = tonumber(text)
  return gate.drawn, text
end

-- Makes `token` a holder for `ms` and returns its fence, as such and as text. `waiting` is what it was recorded with as a waiter.
local function gate_put(gate, token, state, weight, limit, lease_ms, ms, waiting)
  local fence, text = gate_draw(gate, ms)
  if gate.kept > 1 then
    -- So many local hand-offs follow, each with the next fence.
    gate.drawn = fence + gate.kept - 1
    redis.call("SET", gate.clock, digits(gate.drawn), "PX", keep_for(digits(ms)))
  end
  local sum = holders_put(gate, token, weight, ms, state, text)
  if not FENCED then
    redis.call("HSET", gate.records, "S", sum, token, record_format(state, weight, limit, lease_ms, text))
    keep(gate.records, math.max(lease_ms, KEEP_MS))
    return fence, text
  end
  if waiting then
    redis.call("HDEL", gate.records, token)
  end
  if sum then
    redis.call("HSET", gate.records, "S", sum)
    keep(gate.records, KEEP_MS)
  end
  return fence, text
end

-- Takes `token` out of the queue.
local function gate_leave(gate, token)
  gate.waiters = gate.waiters - redis.call("ZREM", gate.queue, token)
end

-- The caller has spoken, and listens: it is no suspect, and alive for another claim. What was said a
-- moment ago need not be said again.
local function gate_alive(gate)
  if gate.suspect then
    roster_clear(gate.roster, gate.caller)
    gate.suspect = false
  end
  if gate.alive < gate.ms + CLAIM_MS - SAID_MS then
    roster_note(gate.roster, gate.caller, CLAIM_MS, gate.ms)
  end
end

-- What a waiter asks for, and until when, in the form of a record: as recorded, or what is usual where nothing is. Nothing, where
-- that is unknown.
local function gate_terms(text, ticket)
  if text then
    return record_parse(text)
  end
  return holders_usual(ticket)
end

-- Records a waiter where it asks for something unusual.
local function gate_note(gate, token, ticket, state, weight, limit, lease_ms, deadline, noted)
  local _, usual_weight, usual_limit, least_ms, usual_deadline = holders_usual(ticket)
  if state == "w" and weight == usual_weight and limit == usual_limit and lease_ms >= least_ms and deadline == usual_deadline then
    if noted then
      redis.call("HDEL", gate.records, token)
    end
    return
  end
  redis.call("HSET", gate.records, token, record_format(state, weight, limit, digits(lease_ms), digits(deadline)))
end

-- Whether nobody is left to use this waiter's place: its process is gone, or its own deadline is. A
-- later release's record tells no deadline. Also whether its process is a suspect.
local function gate_deserted(gate, token, deadline)
  local alive, suspect = roster_look(gate.roster, instance_of(token), gate.ms)
  return deadline and deadline < gate.ms or not alive, suspect
end
