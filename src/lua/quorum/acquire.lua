-- quorum/acquire: hold on this server if it is this name's turn, else wait in its queue or leave. Repeated with the same name it
-- answers how that name stands. Whether a majority holds is the client's to know: here one vote is given.
--
-- KEYS[1]  main    string or zset  who holds
-- KEYS[2]  queue   zset            name -> ticket
-- KEYS[3]  roster  zset            who is alive, who has ended
-- KEYS[4]  clock   string          the greatest fence under this hash tag
-- ARGV[1]  name       string   "<token>.<ticket>.<weight>" of the caller, never used for another acquisition
-- ARGV[2]  lease_ms   integer  length of the lease, > 0
-- ARGV[3]  latest_ms  integer  server time after which this request must create nothing
-- ARGV[4]  terms      string   "<limit> <max_waiters> <mode> <pushed> <fence>", integers: permits there are; length of the queue that
--                              turns newcomers away; 0: leave, 1: wait, 2: a lease that a majority holds is to be held here, too;
--                              1: the caller's inbox is confirmed, 0: it will ask again; the least fence to draw, or with mode 2
--                              the one that was agreed on
--
-- Returns  {0, us, fence, left_ms}  held
--          {1, us, next_ms, foreign, waiters, older}  queued
--          {2, us, next_ms, foreign, waiters, older}  busy, and the caller does not wait
--          {3, us, next_ms, foreign, waiters, older}  the queue is full
--          {4, us}  later than latest_ms
--          {5, us}  the name has ended
--          where next_ms is the time to the first end of a lease (-1: unknown), foreign is 1 if a stranger holds, waiters is how many
--          wait (for who is queued: in front), and older is the ticket of who is in the way, -1 if it has none
-- Writes   all four keys; of main nothing but ended leases when busy, queued or full. O(log n) in the waiters, O(n) in the permits.

local main, queue, roster, clock = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, lease_ms, latest_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, max_waiters, mode, pushed, least = string.match(ARGV[4], "^(%d+) (%d+) (%d) (%d) (%d+)$")
limit, max_waiters, least = tonumber(limit), tonumber(max_waiters), tonumber(least)
local ticket, weight = name_parts(name)

local HELD, QUEUED, BUSY, FULL, LATE, ENDED = 0, 1, 2, 3, 4, 5
local WAIT, FILL = "1", "2"

local us = tonumber(now())
local ms = math.floor(us / 1000)

local function alive()
  local instance = instance_of(name)
  local member = pushed == "1" and instance or "~" .. instance
  -- What was said a moment ago need not be said again.
  if (tonumber(redis.call("ZSCORE", roster, member)) or 0) < ms + CLAIM_MS - SAID_MS then
    roster_note(roster, member, CLAIM_MS, ms)
    roster_purge(roster, ms)
  end
end

local mine, room, older, next_ms, foreign = holders_look(main, name, ms, weight, limit)
if mine then
  if mode == FILL then
    fence_raise(clock, least, lease_ms)
    return {HELD, us, least, holders_left(main, name, ms)}
  end
  return {HELD, us, fence_draw(clock, least, lease_ms), holders_left(main, name, ms)}
end

local wait = redis.call("EXISTS", queue) == 1
local queued = wait and redis.call("ZSCORE", queue, name)
if not queued then
  if ms > latest_ms then
    return {LATE, us}
  end
  if redis.call("ZSCORE", roster, "!" .. name) then
    return {ENDED, us}
  end
elseif mode == WAIT then
  alive()
end

-- Who holds a majority need not wait for its turn here: nobody else could have one.
local first, first_ticket
if wait and mode ~= FILL then
  first, first_ticket = queue_first(queue, roster, ms)
end
local turn = not first or first == name or ticket < first_ticket or ticket == first_ticket and name < first
if room and turn then
  holders_put(main, name, ms, lease_ms)
  if queued then
    redis.call("ZREM", queue, name)
  end
  local fence = least
  if mode == FILL then
    fence_raise(clock, fence, lease_ms)
  else
    fence = fence_draw(clock, least, lease_ms)
  end
  if wait and not holders_full(main, ms, limit) then
    queue_tell(queue, roster, ms)
  end
  return {HELD, us, fence, lease_ms}
end

if room then
  older, next_ms, foreign = first_ticket, 0, 0
end
if mode ~= WAIT then
  if queued then
    -- A majority holds it: it needs no place, and by this answer has none.
    redis.call("ZREM", queue, name)
  end
  return {BUSY, us, next_ms, foreign, wait and redis.call("ZCARD", queue) or 0, older}
end
if not queued then
  local waiters = wait and redis.call("ZCARD", queue) or 0
  if waiters >= max_waiters then
    return {FULL, us, next_ms, foreign, waiters, older}
  end
  redis.call("ZADD", queue, digits(ticket), name)
  alive()
end
keep(queue, KEEP_MS)
return {QUEUED, us, next_ms, foreign, redis.call("ZRANK", queue, name), older}
