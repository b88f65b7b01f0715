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

-- A suspect that stays silent is soon not alive either, so the mark need not outlast a heartbeat.
local function roster_suspect(roster, token, now_ms)
  roster_note(roster, "?" .. instance_of(token), CLAIM_MS, now_ms)
end

local function roster_has(roster, member, now_ms)
  local ends = tonumber(redis.call("ZSCORE", roster, member))
  return ends ~= nil and ends >= now_ms
end
