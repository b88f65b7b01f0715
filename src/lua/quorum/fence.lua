-- Fences of a hash tag: the clock is a STRING with the greatest that was drawn or told here. It outlives its last lease, and a
-- minute at least.

local function fence_note(clock, fence, lease_ms)
  redis.call("SET", clock, digits(fence), "PX", math.max(lease_ms, KEEP_MS))
end

-- One that is greater than all before it, and `least` at least.
local function fence_draw(clock, least, lease_ms)
  local fence = math.max((tonumber(redis.call("GET", clock)) or 0) + 1, least)
  fence_note(clock, fence, lease_ms)
  return fence
end

-- Takes note of one that other servers have agreed on.
local function fence_raise(clock, fence, lease_ms)
  if (tonumber(redis.call("GET", clock)) or 0) < fence then
    fence_note(clock, fence, lease_ms)
  else
    keep(clock, math.max(lease_ms, KEEP_MS))
  end
end
