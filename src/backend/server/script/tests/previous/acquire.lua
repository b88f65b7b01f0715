-- lease/acquire: hold if it is this token's turn, else wait in the queue or leave. Repeated with
-- the same token it answers how that token stands, which makes it the sync of a reconnected process
-- and the pump of a waiting one.
--
-- KEYS[1]  main     string or zset  who holds
-- KEYS[2]  queue    zset            token -> ticket
-- KEYS[3]  records  hash            S, L, token -> record
-- KEYS[4]  roster   zset            who is alive, suspect, ended
-- KEYS[5]  clock    string          the number drawn last under this hash tag
-- ARGV[1]  token        string   of the caller, never used for another acquisition
-- ARGV[2]  channel      string   what precedes an instance in the name of its inbox
-- ARGV[3]  weight       integer  permits asked for, > 0
-- ARGV[4]  limit        integer  permits there are, as the caller sees it, >= weight
-- ARGV[5]  lease_ms     integer  length of the lease, > 0
-- ARGV[6]  latest_ms    integer  server time after which this request must create nothing
-- ARGV[7]  wait_ms      integer  how long to wait in the queue, 0: not at all
-- ARGV[8]  max_waiters  integer  length of the queue that turns newcomers away
-- ARGV[9]  ticket       integer  place to re-enter with, 0: at the end
-- ARGV[10] pushed       integer  1: the caller's inbox is confirmed, 0: it will ask again
--
-- Returns  {0, us, stamp, fence, left_ms}  held
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
--          stamp is not smaller than the fence of an earlier push under this tag, and smaller than that of a later one unless
--          the clock stepped back
-- Writes   all five keys; nothing when busy. O(log n) in the waiters, plus 3 us for each deserted place.

local main, queue, records, roster, clock = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, channel = ARGV[1], ARGV[2]
local weight, limit, lease_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local latest_ms, wait_ms, max_waiters = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local old_ticket, pushed = tonumber(ARGV[9]), ARGV[10] == "1"

local HELD, QUEUED, BUSY, FULL, LATE, ENDED, NEVER, INCOMPATIBLE = 0, 1, 2, 3, 4, 5, 6, 7

local gate, mine = gate_open(main, queue, records, roster, clock, token)
local state, my_weight, my_limit, my_lease, number = record_parse(mine or "")
if mine and not state then
  return {INCOMPATIBLE, gate.us, gate_stamp(gate)}
end

local told = not state and holders_fence(gate, token)
if told or state == "c" or state == "h" then
  local left = holders_left(gate, token)
  if left then
    return {HELD, gate.us, gate_stamp(gate), told or number, left}
  end
  -- It held, and its lease ended before anybody looked. Removed here, it leaves no mark on its
  -- process, which is speaking.
  holders_remove(gate, token, my_weight)
  state = nil
end

-- A loss of the queue leaves the records of its waiters behind: they enter again.
local waits = state ~= nil and redis.call("ZSCORE", queue, token)
if not waits then
  if gate.ms > latest_ms then
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
    grant(gate, channel)
    return {NEVER, gate.us, gate_stamp(gate), gate_limit(gate, my_limit)}
  end
  if state ~= (pushed and "w" or "p") then
    redis.call("HSET", records, token, record_format(pushed and "w" or "p", my_weight, my_limit, my_lease, digits(number)))
  end
end

local fence, next_in_line = grant(gate, channel, token)
if not fence and not waits and next_in_line and holders_fit(gate, weight, gate_limit(gate, limit)) then
  fence = gate_put(gate, token, "h", weight, limit, lease_ms, lease_ms)
end
if fence then
  return {HELD, gate.us, gate_stamp(gate), fence, waits and my_lease or lease_ms}
end

local entered = not waits
if entered then
  local full = wait_ms > 0 and gate.waiters >= max_waiters and (max_waiters == 0 or not sweep(gate))
  if wait_ms == 0 or full then
    local next_ms, foreign = holders_next_end(gate)
    return {full and FULL or BUSY, gate.us, gate_stamp(gate), more(gate), next_ms, foreign, gate.waiters}
  end
  -- A place from before a loss of data counts as long as it lies in the past: every later ticket is
  -- greater.
  local fresh = gate_draw(gate, KEEP_MS)
  local ticket = old_ticket > 0 and old_ticket <= gate.us and old_ticket or fresh
  redis.call("ZADD", queue, digits(ticket), token)
  if not mine then
    -- After a loss of the records it may stand among the holders still, and is never both.
    holders_strip(gate, token)
  end
  redis.call("HSET", records, token,
    record_format(pushed and "w" or "p", weight, limit, lease_ms, digits(gate.ms + wait_ms)))
  gate_alive(gate)
  waits = ticket
end
keep(queue, KEEP_MS)
keep(records, math.max(lease_ms, KEEP_MS))
local next_ms, foreign = holders_next_end(gate)
return {QUEUED, gate.us, gate_stamp(gate), more(gate), next_ms, foreign, redis.call("ZRANK", queue, token),
  tonumber(waits), entered and 1 or 0}
