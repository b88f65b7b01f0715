-- The roster, one ZSET per hash tag: what is true of processes and tokens until a time, in ms of
-- the server's clock.
--
-- "<instance>"   this process is alive
-- "?<instance>"  this process let a claim expire: a suspect, passed over until it speaks
-- "!<token>"     this token has ended: a tombstone, against an acquire that is still under way

-- The first characters of a token name the process that drew it.
local INSTANCE_LENGTH = 12

local function instance_of(token)
  return string.sub(token, 1, INSTANCE_LENGTH)
end

local function roster_note(roster, member, ms, now_ms)
  redis.call("ZADD", roster, digits(now_ms + ms), member)
  keep(roster, math.max(ms, KEEP_MS))
end

-- The process has spoken: it is no suspect.
local function roster_clear(roster, instance)
  redis.call("ZREM", roster, "?" .. instance)
end

-- It has spoken, and listens: it is alive for another claim.
local function roster_alive(roster, instance, now_ms)
  roster_clear(roster, instance)
  roster_note(roster, instance, CLAIM_MS, now_ms)
end

-- Forgets what is true no longer. Heartbeats and tombstones call it, so that the roster stays as
-- small as the fleet.
local function roster_purge(roster, now_ms)
  redis.call("ZREMRANGEBYSCORE", roster, "-inf", "(" .. digits(now_ms))
end

-- The process of `token` let a claim expire. If it stays silent it is soon not alive either, so the
-- mark need not outlast a heartbeat.
local function roster_suspect(gate, token)
  local instance = instance_of(token)
  roster_note(gate.roster, "?" .. instance, CLAIM_MS, gate.ms)
  gate.suspect = gate.suspect or instance == gate.caller
end

-- What the roster says of a process: whether it is alive, and whether it is a suspect.
local function roster_look(roster, instance, now_ms)
  local ends = redis.call("ZMSCORE", roster, instance, "?" .. instance)
  return (tonumber(ends[1]) or 0) >= now_ms, (tonumber(ends[2]) or 0) >= now_ms
end
