-- What is kept of a quota by GCRA: `drained`, the moment at which all that was used will have drained, by one unit per `scale`.

-- A moment that is far, and far below 2^53.
local FAR_US = 4000000000000000

local gcra = {}

gcra.new = function(us, scale)
  return {scale = scale, drained = us}
end

gcra.read = function(value, from)
  local drained, scale, next = struct.unpack("<dd", value, from)
  return {scale = scale, drained = drained}, next
end

gcra.write = function(kept)
  return struct.pack("<dd", kept.drained, kept.scale)
end

-- Counts in another interval from `at` on.
gcra.rescale = function(kept, at, scale)
  local debt = math.max(kept.drained - at, 0)
  if scale ~= kept.scale then
    debt = math.min(math.ceil(debt / kept.scale * scale), FAR_US)
  end
  kept.drained, kept.scale = at + debt, scale
end

gcra.earliest = function(kept, us, burst, cost)
  return math.max(math.max(kept.drained, us) + (cost - burst) * kept.scale, us)
end

gcra.take = function(kept, us, cost)
  kept.drained = math.max(kept.drained, us) + cost * kept.scale
end

gcra.debit = function(kept, us, burst, cost)
  local debt = math.max(kept.drained - us, 0)
  kept.drained = us + math.min(debt + cost * kept.scale, math.max(debt, 2 * burst * kept.scale))
end

gcra.refund = function(kept, _, cost)
  kept.drained = kept.drained - cost * kept.scale
end

gcra.remaining = function(kept, us, burst)
  local debt = math.max(kept.drained - us, 0)
  return math.floor(math.max(burst * kept.scale - debt, 0) / kept.scale)
end

gcra.ends = function(kept)
  return kept.drained
end

gcra.set_back = function(kept, by)
  kept.drained = math.max(kept.drained - by, 0)
end
