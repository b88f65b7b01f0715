-- lease/renew: lengthen many leases of one hash tag, and say that their process is alive. With no lease it is the heartbeat.
-- It creates nothing: what is gone stays gone.
--
-- KEYS[1]  roster  zset  who is alive, suspect, ended
-- KEYS[2], KEYS[3]  main, records  string or zset, hash  the first lease's gate; further leases follow in pairs
-- ARGV[1]  instance  string   of the caller's process
-- ARGV[2]  waits     integer  1: the process has waiters under this tag
-- ARGV[3], ARGV[4], ARGV[5]  token, fence, lease_ms  string, integer, integer  the first lease; further leases follow in triples
--
-- Returns  {us, left_ms, ...}  for each lease the ms it now has at least, or -1: gone, -2: held with another fence,
--                              -3: a record of another protocol version
-- Writes   main, records, roster. 3 us for each lease.

local roster, instance, waits = KEYS[1], ARGV[1], ARGV[2] == "1"

local GONE, OTHER, INCOMPATIBLE = -1, -2, -3

local us = now_us()
local answer = {us}
for index = 1, (#ARGV - 2) / 3 do
  local token, fence, lease_ms = ARGV[3 * index], tonumber(ARGV[3 * index + 1]), tonumber(ARGV[3 * index + 2])
  local gate = {main = KEYS[2 * index], records = KEYS[2 * index + 1], us = us, ms = math.floor(us / 1000)}
  local fields = redis.call("HMGET", gate.records, "S", token)
  holders_open(gate, fields[1])
  local state, weight, limit, lease, number = record_parse(fields[2] or "")
  local left = holders_left(gate, token)
  if fields[2] and not state then
    left = INCOMPATIBLE
  elseif not left or (state ~= "c" and state ~= "h") then
    if state == "c" or state == "h" then
      -- What was said to be gone must not come back when the clock is set back.
      holders_remove(gate, token, weight)
    end
    left = GONE
  elseif number ~= fence then
    left = OTHER
  else
    holders_extend(gate, token, lease_ms)
    keep(gate.records, math.max(lease_ms, KEEP_MS))
    if state == "c" then
      redis.call("HSET", gate.records, token, record_format("h", weight, limit, lease, number))
    end
    left = math.max(left, lease_ms)
  end
  answer[index + 1] = left
end
if waits then
  roster_alive(roster, instance, math.floor(us / 1000))
  roster_purge(roster, math.floor(us / 1000))
end
return answer
