-- Where a process hears of its grants in a cluster: on a channel for each tag, in the slot of its keys, so that those who hear are
-- counted where the script runs.
local PUBLISH = "SPUBLISH"

local function inbox_of(roster, instance)
  local prefix, tag = string.match(roster, "^(.-):({.-})")
  return prefix .. ":inbox:" .. instance .. ":" .. tag
end

