-- The quickest way of lease/acquire for a mutex, in front of most else: nobody holds, nobody waits, nothing is recorded, all is in
-- its value, and the caller does not keep it. Answers as the whole script would, in a fraction of its time; what it does not
-- answer, that does. The answer is the fence alone, since the rest follows from it.
local there = redis.call("EXISTS", KEYS[1], KEYS[2], KEYS[3], KEYS[4])
local free = there == 0
  or there == 1 and redis.call("EXISTS", KEYS[4]) == 1 and not redis.call("ZSCORE", KEYS[4], "!" .. ARGV[1])
if free and string.sub(ARGV[4], -2) == " 0" then
  local text = now()
  local drawn = #text == #ARGV[3] and text <= ARGV[3] and clock_draw(KEYS[5], text, keep_for(ARGV[2]))
  if drawn then
    redis.call("SET", KEYS[1], ARGV[1] .. " " .. drawn, "PX", ARGV[2])
    if drawn == text then
      return drawn
    end
    return {0, text, drawn, drawn, ARGV[2]}
  end
end
