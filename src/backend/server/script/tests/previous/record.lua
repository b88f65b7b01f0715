-- What the records hash says of a token: "<version><state> <weight> <limit> <lease_ms> <number>".
--
-- state   w  waits, and its process listens for pushes     number: the wait's deadline in ms
--         p  waits, and its process asks again by a timer  number: the wait's deadline in ms
--         c  holds by a pushed claim, not renewed yet      number: the fence
--         h  holds its full lease                          number: the fence
--
-- The pattern does not end in `$`: a later release may append fields that this one passes over.

-- Returns nothing for a record of another protocol version.
local function record_parse(text)
  local state, weight, limit, lease, number = string.match(text, "^1([wpch]) (%d+) (%d+) (%d+) (%d+)")
  return state, tonumber(weight), tonumber(limit), tonumber(lease), tonumber(number)
end

-- The number as text, since it has too many digits for anything else.
local function record_format(state, weight, limit, lease, number)
  return "1" .. state .. " " .. weight .. " " .. limit .. " " .. lease .. " " .. number
end
