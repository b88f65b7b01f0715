-- What is kept of a subject, as one string:
--
--   "1" at            when this was written; with "2" in place of "1" a turn is booked, and its moment follows
--   length id method  for each quota, under a name or a place in the list, and then what the method keeps
--
-- or, of a GCRA alone of which no turn is booked, as most are, in 20 bytes:
--
--   "3" at debt scale id   whole numbers of 7, 6 and 6 bytes; the id ends the text, and is left out if it is the place "0"
--
-- Moments are doubles of microseconds. What begins with anything else is of another version.

local METHODS = {g = gcra, s = sliding, l = strict}

-- Returns nil for a state of another version.
local function state_read(value, us)
  local state = {at = us, booked = 0, quotas = {}}
  if not value then
    return state
  end
  local version, from = string.sub(value, 1, 1), 2
  if version == "1" then
    state.at, from = struct.unpack("<d", value, from)
  elseif version == "2" then
    state.at, state.booked, from = struct.unpack("<dd", value, from)
  elseif version == "3" then
    local _, at, debt, scale = struct.unpack(LONE, value)
    local id = #value > 20 and string.sub(value, 21) or "0"
    state.at = at
    state.quotas[1] = {id = id, letter = "g", method = gcra, kept = {scale = scale, drained = at + debt}}
    return state
  else
    return nil
  end
  while from <= #value do
    local id, letter, kept
    id, letter, from = struct.unpack("<Bc0c1", value, from)
    local method = METHODS[letter]
    if not method then
      return nil
    end
    kept, from = method.read(value, from)
    state.quotas[#state.quotas + 1] = {id = id, letter = letter, method = method, kept = kept}
  end
  return state
end

-- The server's clock was set back: the same as before, from here on. Returns whether it was.
local function state_set_back(state, us)
  local by = state.at - us
  if by <= 0 then
    return false
  end
  for _, quota in ipairs(state.quotas) do
    quota.method.set_back(quota.kept, by)
  end
  state.booked = math.max(state.booked - by, 0)
  state.at = us
  return true
end

local function state_write(state)
  local first = state.quotas[1]
  if #state.quotas == 1 and first.letter == "g" and state.booked <= state.at then
    local debt = first.kept.drained - state.at
    -- What is less than nothing ends at once.
    if debt >= 0 and debt < LONE_END_US then
      return struct.pack(LONE, "3", state.at, debt, first.kept.scale) .. (first.id ~= "0" and first.id or "")
    end
  end
  local parts = {}
  if state.booked > state.at then
    parts[1] = struct.pack("<c1dd", "2", state.at, state.booked)
  else
    parts[1] = struct.pack("<c1d", "1", state.at)
  end
  for _, quota in ipairs(state.quotas) do
    parts[#parts + 1] = struct.pack("<Bc0c1", #quota.id, quota.id, quota.letter) .. quota.method.write(quota.kept)
  end
  return table.concat(parts)
end

-- When it says nothing any more.
local function state_ends(state)
  local ends = 0
  for _, quota in ipairs(state.quotas) do
    ends = math.max(ends, quota.method.ends(quota.kept))
  end
  return ends
end

-- Keeps `value`, the text of `state`, for as long as it says anything.
local function state_keep(key, state, value, us)
  local ms = math.ceil((state_ends(state) - us) / 1000)
  if ms > 0 then
    redis.call("SET", key, value, "PX", digits(ms))
  else
    redis.call("DEL", key)
  end
end
