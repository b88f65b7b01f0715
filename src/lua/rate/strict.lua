-- What is kept of a quota by strict log: `times`, when each unit of the last `scale` was used, the oldest first, 8 bytes each.

local strict = {}

local function time_of(kept, index)
  return (struct.unpack("<d", kept.times, 8 * index - 7))
end

local function length(kept)
  return #kept.times / 8
end

-- How many units are older than the window, by halving.
local function over(kept, us)
  local first, last = 1, length(kept)
  while first <= last do
    local middle = math.floor((first + last) / 2)
    if time_of(kept, middle) + kept.scale <= us then
      first = middle + 1
    else
      last = middle - 1
    end
  end
  return last
end

strict.new = function(_, scale)
  return {scale = scale, times = ""}
end

strict.read = function(value, from)
  local scale, count, next = struct.unpack("<dI2", value, from)
  return {scale = scale, times = string.sub(value, next, next + 8 * count - 1)}, next + 8 * count
end

strict.write = function(kept)
  return struct.pack("<dI2", kept.scale, length(kept)) .. kept.times
end

strict.rescale = function(kept, _, scale)
  kept.scale = scale
end

strict.earliest = function(kept, us, limit, cost)
  -- The youngest of those that have to be out of the window first.
  local blocking = length(kept) - (limit - cost)
  return blocking > 0 and math.max(us, time_of(kept, blocking) + kept.scale) or us
end

strict.take = function(kept, us, cost)
  local left = string.sub(kept.times, 8 * over(kept, us) + 1)
  kept.times = left .. string.rep(struct.pack("<d", us), cost)
end

strict.debit = function(kept, us, limit, cost)
  local used = length(kept) - over(kept, us)
  strict.take(kept, us, math.min(cost, math.max(2 * limit - used, 0)))
end

-- The youngest first.
strict.refund = function(kept, us, cost)
  strict.take(kept, us, 0)
  kept.times = string.sub(kept.times, 1, 8 * math.max(length(kept) - cost, 0))
end

strict.remaining = function(kept, us, limit)
  return math.max(limit - (length(kept) - over(kept, us)), 0)
end

strict.ends = function(kept)
  local count = length(kept)
  return count > 0 and time_of(kept, count) + kept.scale or 0
end

strict.set_back = function(kept, by)
  local times = {}
  for index = 1, length(kept) do
    times[index] = struct.pack("<d", math.max(time_of(kept, index) - by, 0))
  end
  kept.times = table.concat(times)
end
