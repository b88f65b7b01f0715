-- Whether others wait, as one process sees it.

-- 1 if permits of this gate are kept, and a place of another process than `instance` is in the queue, as far as its first 64 places
-- tell. Mostly the first two do: that of who is being served, and the next.
local function others(gate, instance)
  local from, to = 0, 1
  while gate.kept > 0 and gate.waiters > from and from < 64 do
    for _, token in ipairs(redis.call("ZRANGE", gate.queue, from, to)) do
      if instance_of(token) ~= instance then
        return 1
      end
    end
    from, to = to + 1, 63
  end
  return 0
end
