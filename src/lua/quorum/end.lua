-- quorum/end: take the name out of this server's holders and queue, or only out of its holders, and tell the first who waits.
--
-- KEYS[1]  main    string or zset  who holds
-- KEYS[2]  queue   zset            name -> ticket
-- KEYS[3]  roster  zset            who is alive, who has ended
-- ARGV[1]  name       string   of the caller
-- ARGV[2]  latest_ms  integer  until when an unanswered acquire of this name may run, 0: none is unanswered
-- ARGV[3]  stay       integer  0: it has ended; else it gives way, and waits on at its old place: 1: it will ask again, 2: its inbox
--                               is confirmed
-- ARGV[4]  limit      integer  permits there are
-- ARGV[5]  channel    string   that other clients watch for this key, empty: none
--
-- Returns  {0, us}  released
--          {1, us}  it only waited
--          {2, us}  it neither held nor waited
-- Writes   all three keys. O(log n) in the waiters, O(n) in the permits.

local main, queue, roster = KEYS[1], KEYS[2], KEYS[3]
local name, latest_ms, stays, limit, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3] ~= "0", tonumber(ARGV[4]), ARGV[5]

local RELEASED, CANCELLED, GONE = 0, 1, 2

-- Freed first: at maxmemory a script that has freed may go on.
local us = tonumber(now())
local ms = math.floor(us / 1000)
local status = GONE
if holders_remove(main, name, ms) then
  status = RELEASED
end
if stays then
  if status == RELEASED then
    redis.call("ZADD", queue, digits((name_parts(name))), name)
    keep(queue, KEEP_MS)
    -- It may not have waited before, and is alive.
    local instance = instance_of(name)
    roster_note(roster, ARGV[3] == "2" and instance or "~" .. instance, CLAIM_MS, ms)
  end
elseif redis.call("ZREM", queue, name) == 1 and status == GONE then
  status = CANCELLED
end
if latest_ms >= ms then
  roster_note(roster, "!" .. name, latest_ms - ms, ms)
  roster_purge(roster, ms)
end
if redis.call("EXISTS", queue) == 1 and not holders_full(main, ms, limit) then
  queue_tell(queue, roster, ms, stays and name)
end
if status == RELEASED and channel ~= "" then
  redis.pcall("PUBLISH", channel, "1")
end
return {status, us}
