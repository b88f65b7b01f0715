-- Telling processes that keep permits that others wait for them.

-- A place was made in the queue, and permits of this gate are kept: tells so each process that may not know that others wait.
-- `head` had the first place before. With one, all know but its own process, unless that is the caller's; without one, whoever
-- holds may not. By pcall: who hears nothing asks. Last, as every push.
local function recall(gate, head)
  local text = "r " .. digits(gate_stamp(gate)) .. " " .. gate.main
  local told = {[gate.caller] = true}
  for _, token in ipairs(head and {head} or holders_list(gate)) do
    local instance = instance_of(token)
    if not told[instance] then
      told[instance] = true
      redis.pcall(PUBLISH, inbox_of(gate.roster, instance), text)
    end
  end
end
