-- lease/acquire: hold if it is this token's turn, else wait in the queue or leave. Repeated with
-- the same token it answers how that token stands, which makes it the sync of a reconnected process
-- and the pump of a waiting one.
--
-- KEYS[1]  main     string or zset  who holds
-- KEYS[2]  queue    zset            token -> ticket
-- KEYS[3]  records  hash            S, L, K, token -> record
-- KEYS[4]  roster   zset            who is alive, suspect, ended
-- KEYS[5]  clock    string          the number drawn last under this hash tag
-- ARGV[1]  token        string   of the caller, never used for another acquisition
-- ARGV[2]  lease_ms   integer  length of the lease, > 0
-- ARGV[3]  latest_us  integer  server time after which this request must create nothing
-- ARGV[4]  terms      string   "<weight> <limit> <wait_ms> <max_waiters> <ticket> <pushed> <kept>", integers: permits asked for,
--                              > 0; permits there are, as the caller sees it, >= weight; how long to wait in the queue, 0: not at
--                              all; length of the queue that turns newcomers away; place to re-enter with, 0: at the end; 1: the
--                              caller's inbox is confirmed, 0: it will ask again; 0, or 1 and more: the caller keeps what it is
--                              granted, and of a mutex it may use as many further fences as that is more than 1
--
-- Returns  {0, us, stamp, fence, left_ms, others}  held
--          {1, us, stamp, more, next_ms, foreign, position, ticket, entered}  queued
--          {2, us, stamp, more, next_ms, foreign, waiters}  busy, and the caller does not wait
--          {3, us, stamp, more, next_ms, foreign, waiters}  the queue is full
--          {4, us, stamp}                  later than latest_ms
--          {5, us, stamp}                  the token has ended
--          {6, us, stamp, limit}           more than there ever is
--          {7, us, stamp}                  a record of another protocol version
--          where next_ms is the time to the first end of a lease (-1: unknown), foreign is 1 if a stranger holds,
--          more is 1 if deserted places are left to clear: repeat the call, and entered is 1 if the place was made by this
--          call: one that was queued before has been forgotten, and its process' other waiters with it;
--          position is how many wait in front, where the place was made by this call at the end: how many wait already;
--          others is 1 if permits of this gate are kept, and a process other than the caller's waits;
--          a quick answer may be the fence alone, as text: held for lease_ms, us and stamp are the same, and others is 0; or lack
--          others, which is 0;
--          stamp is not smaller than the fence of an earlier push under this tag, and smaller than that of a later one unless
--          the clock stepped back
-- Writes   all five keys; nothing when busy, and when full only that a living process still lives. O(log n) in the waiters, plus
--          3 us for each deserted place and for each process that is recalled.

local main, queue, records, roster, clock = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, lease_ms, latest_us, terms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local weight, limit, wait_ms, max_waiters, old_ticket, pushed, kept =
  string.match(terms, "^(%d+) (%d+) (%d+) (%d+) (%d+) (%d) (%d+)$")
weight, limit, wait_ms = tonumber(weight), tonumber(limit), tonumber(wait_ms)
max_waiters, old_ticket, kept = tonumber(max_waiters), tonumber(old_ticket), tonumber(kept)
local wanted = pushed == "1" and "w" or "p"

local HELD, QUEUED, BUSY, FULL, LATE, ENDED, NEVER, INCOMPATIBLE = 0, 1, 2, 3, 4, 5, 6, 7

local gate, mine = gate_open(main, queue, records, roster, clock, token)
local state, my_weight, my_limit, my_lease, number = record_parse(mine or "")
if mine and not state then
  return {INCOMPATIBLE, gate.us, gate_stamp(gate)}
end

-- What `K` has to say from here on, once this call has made a holder or a place.
local noted = gate.kept
if kept > noted then
  gate.kept = kept
end

local told = not state and holders_fence(gate, token)
if told or state == "c" or state == "h" or holders_trace(gate, token) then
  local left, fence = holders_left(gate, token), told or number
  if left and fence then
    return {HELD, gate.us, gate_stamp(gate), fence, left, others(gate, gate.caller)}
  end
  -- It held, and its lease ended before anybody looked. Removed here, it leaves no mark on its
  -- process, which is speaking.
  holders_remove(gate, token, my_weight)
  state = nil
end

-- Whether it has a place. A loss of the queue leaves the records of its waiters behind, and one of the records leaves places of
-- which nobody knows what they are for: then it enters again.
local ticket = redis.call("ZSCORE", queue, token)
if ticket and not mine then
  state, my_weight, my_limit, my_lease, number = holders_usual(ticket)
end
local waits = ticket and state
if not waits then
  if gate.us > latest_us then
    return {LATE, gate.us, gate_stamp(gate)}
  end
  if gate.ended then
    return {ENDED, gate.us, gate_stamp(gate)}
  end
  if weight > gate_limit(gate, limit) then
    return {NEVER, gate.us, gate_stamp(gate), gate_limit(gate, limit)}
  end
else
  gate_alive(gate)
  if my_weight > gate_limit(gate, my_limit) then
    drop(gate, token)
    grant(gate)
    return {NEVER, gate.us, gate_stamp(gate), gate_limit(gate, my_limit)}
  end
  if state ~= wanted then
    gate_note(gate, token, ticket, wanted, my_weight, my_limit, my_lease, number, mine)
  end
end

local fence, next_in_line = grant(gate, token, lease_ms)
if not fence and not waits and next_in_line and holders_fit(gate, weight, gate_limit(gate, limit)) then
  fence = gate_put(gate, token, "h", weight, limit, lease_ms, lease_ms, mine)
end
if fence then
  if gate.kept > noted then
    redis.call("HSET", records, "K", kept)
  end
  if kept > 0 then
    keep(records, math.max(lease_ms, KEEP_MS))
  end
  return {HELD, gate.us, gate_stamp(gate), fence, lease_ms, others(gate, gate.caller)}
end

local entered, position, head = not waits, nil, nil
if entered then
  local full = wait_ms > 0 and gate.waiters >= max_waiters and (max_waiters == 0 or not sweep(gate))
  if full and wanted == "w" and gate.alive >= gate.ms then
    -- In a flood of its own newcomers a process' heartbeats come behind them.
    gate_alive(gate)
  end
  if wait_ms == 0 or full then
    local next_ms, foreign = holders_next_end(gate)
    return {full and FULL or BUSY, gate.us, gate_stamp(gate), more(gate), next_ms, foreign, gate.waiters}
  end
  -- A place from before a loss of data counts as long as it lies in the past: every later ticket is
  -- greater.
  local fresh, text = gate_draw(gate, KEEP_MS)
  ticket, position = fresh, gate.waiters
  if old_ticket > 0 and old_ticket <= gate.us then
    ticket, text, position = old_ticket, digits(old_ticket), nil
  end
  head = gate.kept > 0 and gate.waiters > 0 and redis.call("ZRANGE", queue, "0", "0")[1]
  redis.call("ZADD", queue, text, token)
  if not mine then
    -- After a loss of the records it may stand among the holders still, and is never both.
    holders_strip(gate, token)
  end
  gate_note(gate, token, ticket, wanted, weight, limit, lease_ms, gate.ms + wait_ms, mine)
  gate_alive(gate)
end
if gate.kept > noted then
  redis.call("HSET", records, "K", kept)
end
keep(queue, KEEP_MS)
keep(records, math.max(lease_ms, KEEP_MS))
if entered and gate.kept > 0 then
  recall(gate, head)
end
local next_ms, foreign = holders_next_end(gate)
return {QUEUED, gate.us, gate_stamp(gate), more(gate), next_ms, foreign, position or redis.call("ZRANK", queue, token),
  tonumber(ticket), entered and 1 or 0}
