-- Where a process hears of its grants: on one channel. Its name begins with the prefix of all keys, which comes before the tag.
local PUBLISH = "PUBLISH"

local function inbox_of(roster, instance)
  return string.match(roster, "^(.-):{") .. ":inbox:" .. instance
end

