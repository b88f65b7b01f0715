-- quorum/renew: lengthen a lease on this server, and take note of the fence that was agreed on. It creates no lease.
--
-- KEYS[1]  main   string or zset  who holds
-- KEYS[2]  clock  string          the greatest fence under this hash tag
-- ARGV[1]  name      string   of the caller
-- ARGV[2]  lease_ms  integer  length of the lease, > 0
-- ARGV[3]  fence     integer  that the lease is to have
--
-- Returns  {0, us, left_ms}  held for so long at least
--          {2, us}           not held
-- Writes   both keys. O(1); O(n) in the permits.

local main, clock = KEYS[1], KEYS[2]
local name, lease_ms, fence = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local HELD, GONE = 0, 2

local us = tonumber(now())
local ms = math.floor(us / 1000)
if not holders_look(main, name, ms, 0, 0) then
  return {GONE, us}
end
holders_extend(main, name, ms, lease_ms)
fence_raise(clock, fence, lease_ms)
return {HELD, us, math.max(holders_left(main, name, ms), lease_ms)}
