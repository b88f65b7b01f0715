-- lease/end: release what the token holds or cancel its wait, and hand on what that frees.
--
-- KEYS[1]  main     string or zset  who holds
-- KEYS[2]  queue    zset            token -> ticket
-- KEYS[3]  records  hash            S, L, K, token -> record
-- KEYS[4]  roster   zset            who is alive, suspect, ended
-- KEYS[5]  clock    string          the number drawn last under this hash tag
-- ARGV[1]  token      string   of the caller
-- ARGV[2]  latest_ms  integer  until when an unanswered acquire of this token may run, 0: none is unanswered
-- ARGV[3]  channel    string   that other clients watch for this key, empty: none
--
-- Returns  {0, us, stamp, more}  released
--          {1, us, stamp, more}  it only waited, and waits no longer
--          {2, us, stamp, more}  it neither held nor waited
--          {7, us, stamp, 0}     a record of another protocol version
--          where more is 1 if deserted places are left to clear: repeat the call. A quick answer is the first number alone: the
--          others are 0
-- Writes   all five keys. O(log n) in the waiters, plus 3 us for each deserted place.

local main, queue, records, roster, clock = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, latest_ms, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local RELEASED, CANCELLED, GONE, INCOMPATIBLE = 0, 1, 2, 7

local gate, mine = gate_open(main, queue, records, roster, clock, token)
local state, weight = record_parse(mine or "")
if mine and not state then
  return {INCOMPATIBLE, gate.us, gate_stamp(gate), 0}
end

local status = GONE
if released then
  -- By a quick way, which got no further.
  status = RELEASED
elseif holders_hold(gate, token) then
  holders_remove(gate, token, weight or 1)
  status = RELEASED
elseif state == "c" or state == "h" or holders_trace(gate, token) then
  holders_remove(gate, token, weight)
else
  local before = gate.waiters
  gate_leave(gate, token)
  if mine then
    redis.call("HDEL", records, token)
  end
  status = gate.waiters < before and CANCELLED or GONE
end

if latest_ms >= gate.ms then
  roster_note(roster, "!" .. token, latest_ms - gate.ms, gate.ms)
  roster_purge(roster, gate.ms)
end
grant(gate)
if status == RELEASED and channel ~= "" then
  redis.pcall("PUBLISH", channel, "1")
end
return {status, gate.us, gate_stamp(gate), more(gate)}
