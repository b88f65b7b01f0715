-- quorum/renew: lengthen a lease on this server, and tell it the fence that is agreed on, or is to be. It creates no lease.
--
-- KEYS[1]  main   string or zset  who holds
-- KEYS[2]  clock  string          the greatest fence under this hash tag
-- ARGV[1]  name      string   of the caller
-- ARGV[2]  lease_ms  integer  length of the lease, > 0
-- ARGV[3]  fence     integer  that the lease is to have
-- ARGV[4]  agreed    integer  1: it has; 0: it will, if no other was as great here, or else another is drawn: what two hold at once,
--                             they hold by two fences, since all that agree on one have seen no other as great
--
-- Returns  {0, us, left_ms, fence}  held for so long at least
--          {2, us}           not held
-- Writes   both keys. O(1); O(n) in the permits.

local main, clock = KEYS[1], KEYS[2]
local name, lease_ms, fence, agreed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == "1"

local HELD, GONE = 0, 2

local us = tonumber(now())
local ms = math.floor(us / 1000)
if not holders_look(main, name, ms, 0, 0) then
  return {GONE, us}
end
holders_extend(main, name, ms, lease_ms)
if agreed then
  fence_raise(clock, fence, lease_ms)
else
  fence = fence_draw(clock, fence, lease_ms)
end
return {HELD, us, math.max(holders_left(main, name, ms), lease_ms), fence}
