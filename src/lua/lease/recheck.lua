-- lease/recheck: what a process that keeps permits asks of its gate: which of them it still has, and whether others wait. It writes
-- nothing.
--
-- KEYS[1]  main     string or zset  who holds
-- KEYS[2]  queue    zset            token -> ticket
-- KEYS[3]  records  hash            S, L
-- KEYS[4]  clock    string          the number drawn last under this hash tag
-- ARGV[1]  instance  string  of the caller's process
-- ARGV[2]  token     string  whose permit may be there; further tokens follow
--
-- Returns  {us, stamp, others, held, ...}  others is 1 if a place of another process than the caller's is in the queue, as far as its
--                              first 64 places tell, or if more is held than an operator's limit allows; held is 1 if the token holds, 0 if not, for each token; stamp is not smaller than
--                              the fence of an earlier grant under this tag, and smaller than that of a later one unless the clock
--                              stepped back
-- Writes   nothing. 1 us for each token.

local main, queue, records, clock = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local instance = ARGV[1]

local us = tonumber(now())
local gate = {main = main, queue = queue, us = us, ms = math.floor(us / 1000), kept = 1}
gate.drawn = clock_read(clock)
gate.waiters = redis.call("ZCARD", queue)
local fields = redis.call("HMGET", records, "S", "L")
holders_open(gate, fields[1])
-- Who holds more than an operator's limit has room for gives it back as if others waited for it.
local over = fields[2] and (gate.used or 1) > tonumber(fields[2])
local answer = {us, gate_stamp(gate), over and 1 or others(gate, instance)}
for index = 2, #ARGV do
  answer[index + 2] = holders_hold(gate, ARGV[index]) and 1 or 0
end
return answer
