-- What is kept of a quota by sliding-window counter: how much was used in the window (of length `scale`) of the last use, and in the
-- one before.

-- A window is looked at in so many steps, or a few less: a count times this is less than 2^53.
local STEPS = 1000000

local sliding = {}

-- How a window is divided: the length of a step, and their number.
local function steps_of(window)
  local step = math.ceil(window / STEPS)
  return step, math.ceil(window / step)
end

-- The steps of the window before that still count at a moment.
local function weight_at(us, window)
  local step, steps = steps_of(window)
  return steps - math.floor(us % window / step)
end

-- The counts as of the window of `us`, which is not before the last use.
local function counts_at(kept, us)
  local passed = math.floor(us / kept.scale) - math.floor(kept.last / kept.scale)
  if passed == 0 then
    return kept.current, kept.previous
  end
  return 0, passed == 1 and kept.current or 0
end

local function used_at(kept, us)
  local current, previous = counts_at(kept, us)
  local _, steps = steps_of(kept.scale)
  return current + math.ceil(previous * weight_at(us, kept.scale) / steps)
end

-- Counts all as used at the last use.
local function gather(kept)
  kept.current, kept.previous = used_at(kept, kept.last), 0
end

sliding.new = function(us, scale)
  return {scale = scale, last = us, current = 0, previous = 0}
end

sliding.read = function(value, from)
  local last, scale, current, previous, next = struct.unpack("<ddI4I4", value, from)
  return {scale = scale, last = last, current = current, previous = previous}, next
end

sliding.write = function(kept)
  return struct.pack("<ddI4I4", kept.last, kept.scale, kept.current, kept.previous)
end

sliding.rescale = function(kept, _, scale)
  if scale ~= kept.scale then
    gather(kept)
    kept.scale = scale
  end
end

sliding.earliest = function(kept, us, limit, cost)
  local from = math.max(us, kept.last)
  local step, steps = steps_of(kept.scale)
  local current, previous = counts_at(kept, from)
  local start = from - from % kept.scale
  while true do
    local free = limit - current - cost
    local weight = steps
    if previous > 0 then
      weight = math.min(steps, math.floor(free * steps / previous))
    end
    if free >= 0 and weight > 0 then
      return math.max(from, start + (steps - weight) * step)
    end
    -- In the third window both are zero, and the cost fits.
    current, previous = 0, current
    start = start + kept.scale
  end
end

sliding.take = function(kept, us, cost)
  kept.current, kept.previous = counts_at(kept, us)
  kept.current, kept.last = kept.current + cost, us
end

sliding.debit = function(kept, us, limit, cost)
  sliding.take(kept, us, math.min(cost, math.max(2 * limit - used_at(kept, us), 0)))
end

-- From the window in which it was used last first.
sliding.refund = function(kept, us, cost)
  sliding.take(kept, us, 0)
  local recent = math.min(cost, kept.current)
  kept.current = kept.current - recent
  kept.previous = math.max(kept.previous - (cost - recent), 0)
end

sliding.remaining = function(kept, us, limit)
  return math.max(limit - used_at(kept, math.max(us, kept.last)), 0)
end

sliding.ends = function(kept)
  local start = kept.last - kept.last % kept.scale
  if kept.current > 0 then
    return start + 2 * kept.scale
  end
  return kept.previous > 0 and start + kept.scale or kept.last
end

sliding.set_back = function(kept, by)
  -- The windows begin elsewhere.
  gather(kept)
  kept.last = math.max(kept.last - by, 0)
end
